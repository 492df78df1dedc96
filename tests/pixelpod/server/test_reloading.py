"""Values follow their files, and a mistake in a file changes nothing but the log."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

import pixelpod.server.reloading
from pixelpod.server.reloading import FileRefused, Reloaded, read_file

WAIT_SECONDS = 10.0


def _number_in(file: Path) -> Reloaded[int]:
    def load() -> int:
        try:
            return int(read_file(file))
        except ValueError:
            raise FileRefused(f"{file}: no number") from None

    return Reloaded([file], load)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "number"
    file.write_text("1")
    return file


def test_a_replaced_file_is_read_again(file: Path, tmp_path: Path) -> None:
    number = _number_in(file)
    number.refresh()
    assert number.value == 1
    (tmp_path / "new").write_text("2")
    (tmp_path / "new").replace(file)
    number.refresh()
    assert number.value == 2


def test_a_link_that_points_elsewhere_is_read_again(tmp_path: Path) -> None:
    """Kubernetes replaces mounted secrets so: same name, another file, of the same size and time."""
    for name, content in (("old", "1"), ("new", "2")):
        (tmp_path / name).write_text(content)
        os.utime(tmp_path / name, (1_000, 1_000))
    link = tmp_path / "link"
    link.symlink_to("old")
    number = _number_in(link)
    (tmp_path / "waiting").symlink_to("new")
    (tmp_path / "waiting").replace(link)
    number.refresh()
    assert number.value == 2


def test_a_broken_or_missing_file_keeps_the_value_and_is_told_once(file: Path, caplog) -> None:
    number = _number_in(file)
    file.write_text("many")
    with caplog.at_level(logging.INFO):
        number.refresh()
        number.refresh()
    assert number.value == 1
    (record,) = caplog.records
    assert (record.levelname, record.problem) == ("ERROR", f"{file}: no number")
    file.unlink()
    number.refresh()
    assert number.value == 1
    assert "No such file" in caplog.records[-1].problem
    file.write_text("3")
    number.refresh()
    assert number.value == 3


def test_a_file_that_is_broken_at_the_start_is_refused(file: Path) -> None:
    file.unlink()
    with pytest.raises(FileRefused, match=r"number: No such file"):
        _number_in(file)


async def test_files_are_followed_without_being_asked(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixelpod.server.reloading, "POLL_SECONDS", 0.01)
    read, loop = asyncio.Queue[int](), asyncio.get_running_loop()

    def load() -> int:
        number = int(read_file(file))
        loop.call_soon_threadsafe(read.put_nowait, number)
        return number

    number = Reloaded([file], load)
    assert await read.get() == 1
    following = asyncio.create_task(number.follow())
    await asyncio.to_thread(file.write_text, "42")
    assert await asyncio.wait_for(read.get(), WAIT_SECONDS) == 42
    following.cancel()
