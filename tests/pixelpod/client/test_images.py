"""What can be done with a generated image."""

from __future__ import annotations

import io
import os
import stat
import sys
from pathlib import Path

import PIL.Image
import pytest

from pixelpod.client import GeneratedImage


def image(data: bytes) -> GeneratedImage:
    return GeneratedImage(data, "image/png", width=3, height=2, seed=0, index=0, sha256="")


def test_save_writes_the_bytes(tmp_path: Path) -> None:
    image(b"new").save(tmp_path / "fox.png")
    assert (tmp_path / "fox.png").read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["fox.png"]


def test_save_takes_text_and_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        image(b"new").save(str(tmp_path / "fox.png"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "fox.png").stat().st_mode) == 0o640


def test_save_replaces_a_file_and_keeps_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.png").write_bytes(b"old")
    (tmp_path / "link.png").symlink_to("real.png")
    image(b"new").save(tmp_path / "link.png")
    assert (tmp_path / "link.png").is_symlink()
    assert (tmp_path / "real.png").read_bytes() == b"new"


def test_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    (tmp_path / "fox.png").write_bytes(b"old")
    monkeypatch.setattr(Path, "write_bytes", no_space)
    with pytest.raises(OSError, match="No space left"):
        image(b"new").save(tmp_path / "fox.png")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("fox.png", b"old")]


def test_save_writes_into_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    image(b"new").save(tmp_path / "pipe")
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_pil(tmp_path: Path) -> None:
    file = io.BytesIO()
    PIL.Image.new("RGB", (3, 2), (255, 0, 0)).save(file, "PNG")
    decoded = image(file.getvalue()).pil()
    assert (decoded.size, decoded.getpixel((2, 1))) == ((3, 2), (255, 0, 0))


def test_pil_without_pillow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image")
    with pytest.raises(ImportError, match=r"pip install pixelpod\[pil\]"):
        image(b"").pil()
