"""Children that live and end together."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from pixelpod.commands.supervisor import ChildEnded, Supervisor

SECONDS = 20.0
GRACE_SECONDS = 10.0


PRELUDE = """
import os, signal, sys, time

def note(path, text):
    open(path + ".draft", "w").write(text)
    os.rename(path + ".draft", path)
"""


def child(code: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + code]


def stubborn_child(ready: Path) -> list[str]:
    """Return a child that ignores SIGTERM; it writes its process id to `ready` when it does."""
    return child(
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN); note({str(ready)!r}, str(os.getpid())); time.sleep(60)"
    )


def noting_child(ends: Path, name: str) -> list[str]:
    """Return a child that appends its name to `ends` at SIGTERM; the file `name` beside says that it is ready."""
    return child(
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(ends)!r}, 'a').write({name!r}), sys.exit()))\n"
        f"note({str(ends.with_name(name))!r}, ''); time.sleep(60)"
    )


async def appears(file: Path) -> str:
    """Return what another process writes to `file`."""
    return await asyncio.to_thread(_wait_for, file)


def _wait_for(file: Path) -> str:
    deadline = time.monotonic() + SECONDS
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} did not appear"
        time.sleep(0.02)
    return file.read_text()


async def forever() -> None:
    await asyncio.Event().wait()


async def test_result_of_the_work() -> None:
    async def work() -> int:
        return 7

    async with Supervisor(GRACE_SECONDS) as supervisor:
        await supervisor.start("sleeper", child("time.sleep(60)"))
        assert await supervisor.watch(work()) == 7


async def test_error_of_the_work() -> None:
    async def work() -> None:
        raise KeyError("x")

    async with Supervisor(GRACE_SECONDS) as supervisor:
        await supervisor.start("sleeper", child("time.sleep(60)"))
        with pytest.raises(KeyError):
            await supervisor.watch(work())


@pytest.mark.parametrize(
    ("code", "exit_code", "message"),
    [
        ("sys.exit(3)", 3, "the group ended with exit code 3"),
        ("sys.exit(0)", 0, "the group ended with exit code 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "the group ended with signal SIGKILL"),
    ],
)
async def test_end_of_a_child_is_told_and_ends_the_others(code: str, exit_code: int, message: str) -> None:
    work_cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await forever()
        finally:
            work_cancelled.set()

    async def supervise() -> None:
        async with Supervisor(GRACE_SECONDS) as supervisor:
            await supervisor.start("other", child("time.sleep(60)"))
            await supervisor.start("group", child(code))
            await supervisor.watch(work())

    begun = time.monotonic()
    with pytest.raises(ChildEnded) as raised:
        await supervise()
    assert (raised.value.name, raised.value.exit_code, str(raised.value)) == ("group", exit_code, message)
    assert work_cancelled.is_set()
    assert time.monotonic() - begun < GRACE_SECONDS


async def test_last_started_is_stopped_first(tmp_path: Path) -> None:
    ends = tmp_path / "ends"
    async with Supervisor(GRACE_SECONDS) as supervisor:
        for name in ("1", "2", "3"):
            await supervisor.start(name, noting_child(ends, name))
            await appears(tmp_path / name)
    assert ends.read_text() == "321"


async def test_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    async with Supervisor(grace_seconds=0.3) as supervisor:
        await supervisor.start("stubborn", stubborn_child(ready))
        pid = await appears(ready)
        begun = time.monotonic()
    assert 0.3 <= time.monotonic() - begun < 5.0
    assert not psutil.pid_exists(int(pid))


async def test_cancelling_the_stop_kills_at_once(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    supervisor = Supervisor(grace_seconds=60)
    await supervisor.start("stubborn", stubborn_child(ready))
    pid = await appears(ready)
    stopping = asyncio.create_task(supervisor.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(stopping, SECONDS)
    assert not psutil.pid_exists(int(pid))


async def test_child_has_a_process_group_of_its_own(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    async with Supervisor(GRACE_SECONDS) as supervisor:
        await supervisor.start("child", child(f"note({str(ready)!r}, str(os.getpgid(0))); time.sleep(60)"))
        assert int(await appears(ready)) != os.getpgid(0)
