"""A group and a frontend that are started, watched and stopped together. Small stand-ins run for them."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from pixelpod.commands.addresses import free_address, reachable, with_port
from pixelpod.commands.deployment import Deployment
from pixelpod.commands.failure import CommandFailed
from pixelpod.exit_codes import ExitCode
from tests.pixelpod.commands.fake_servers import fake_server

SECONDS = 30.0


def ending(exit_code: int) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import sys; sys.exit({exit_code})")


def deployment(
    group: Callable[[str], tuple[str, ...]], frontend: Callable[[str], tuple[str, ...]], ready_seconds: float = SECONDS
) -> Deployment:
    group_address, frontend_address = free_address(), free_address()
    return Deployment(
        group_argv=group(group_address),
        group_address=group_address,
        frontend_argv=frontend(frontend_address),
        frontend_address=frontend_address,
        ready_seconds=ready_seconds,
    )


def serving(role: str) -> Callable[[str], tuple[str, ...]]:
    return lambda address: fake_server(role, address)


class Use:
    """What a test does with a deployment that serves: it notes that, and then waits or ends."""

    def __init__(self, ends: bool = False) -> None:
        self.begun = asyncio.Event()
        self._ends = ends

    async def __call__(self) -> None:
        self.begun.set()
        if not self._ends:
            await asyncio.Event().wait()


async def test_ends_with_its_use() -> None:
    use = Use(ends=True)
    await asyncio.wait_for(deployment(serving("group"), serving("frontend")).run(lambda _: None, use), SECONDS)
    assert use.begun.is_set()
    assert psutil.Process().children() == []


async def test_ready_once_the_frontend_serves() -> None:
    use = Use()
    running = asyncio.create_task(deployment(serving("group"), serving("frontend")).run(lambda _: None, use))
    await asyncio.wait_for(use.begun.wait(), SECONDS)
    children = psutil.Process().children()
    assert len(children) == 2
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, SECONDS)
    assert not any(child.is_running() for child in children)


async def test_tells_what_it_waits_for() -> None:
    told: list[str] = []
    enough = asyncio.Event()

    def tell(line: str) -> None:
        told.append(line)
        if "WARMING" in line:
            enough.set()

    # A second group in place of the frontend: it has no health.
    running = asyncio.create_task(deployment(serving("warming"), serving("group")).run(tell, Use()))
    await asyncio.wait_for(enough.wait(), SECONDS)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wait_for(running, SECONDS)
    assert told == ["waiting for the group: its processes start", "waiting for the group: WARMING 64x64 is next"]


async def test_waits_only_so_long() -> None:
    with pytest.raises(CommandFailed, match=r"nothing serves after 0\.5 s") as raised:
        await deployment(serving("group"), serving("group"), ready_seconds=0.5).run(lambda _: None, Use())
    assert raised.value.exit_code == ExitCode.FAILED


@pytest.mark.parametrize(
    ("group_exit_code", "exit_code"),
    [
        (0, ExitCode.FAILED),
        (1, ExitCode.FAILED),
        (2, ExitCode.REFUSED),
        (3, ExitCode.ADDRESS_IN_USE),
        (9, ExitCode.FAILED),
    ],
)
async def test_child_that_ends_while_starting(group_exit_code: int, exit_code: ExitCode) -> None:
    with pytest.raises(CommandFailed, match=f"the group ended with exit code {group_exit_code}") as raised:
        await deployment(lambda _: ending(group_exit_code), serving("frontend")).run(lambda _: None, Use())
    assert raised.value.exit_code == exit_code


async def test_child_that_ends_later() -> None:
    use = Use()
    running = asyncio.create_task(deployment(serving("group"), serving("frontend")).run(lambda _: None, use))
    await asyncio.wait_for(use.begun.wait(), SECONDS)
    (frontend,) = [child for child in psutil.Process().children() if "frontend" in child.cmdline()]
    frontend.kill()
    with pytest.raises(CommandFailed, match="the frontend ended with signal SIGKILL") as raised:
        await asyncio.wait_for(running, SECONDS)
    assert raised.value.exit_code == ExitCode.FAILED
    assert psutil.Process().children() == []


def start_fake_dev(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.pixelpod.commands.fake_dev", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stops_cleanly_on_a_signal(number: signal.Signals) -> None:
    process = start_fake_dev()
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    children = psutil.Process(process.pid).children()
    assert len(children) == 2
    process.send_signal(number)
    rest, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, rest) == (0, "stopped\n")
    assert not any(child.is_running() for child in children)


def test_second_signal_kills_at_once() -> None:
    process = start_fake_dev("stubborn")
    assert process.stdout is not None
    assert {process.stdout.readline(), process.stdout.readline()} == {"ready\n", "stubborn\n"}
    children = psutil.Process(process.pid).children()
    (frontend,) = [child for child in children if "frontend" in child.cmdline()]
    process.send_signal(signal.SIGINT)
    frontend.wait(timeout=SECONDS)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)
    assert time.monotonic() - begun < 10.0
    assert process.returncode == 0
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize("arguments", [(), ("stubborn",)])
def test_nothing_outlives_a_killed_parent(arguments: tuple[str, ...]) -> None:
    process = start_fake_dev(*arguments)
    assert process.stdout is not None
    assert {process.stdout.readline() for _ in range(1 + len(arguments))} == {"ready\n", *(f"{a}\n" for a in arguments)}
    children = psutil.Process(process.pid).children()
    assert len(children) == 2
    process.kill()
    process.communicate(timeout=SECONDS)
    _, alive = psutil.wait_procs(children, timeout=SECONDS)
    assert alive == []


def test_addresses() -> None:
    assert reachable("0.0.0.0:7860") == "127.0.0.1:7860"
    assert reachable("[::]:7860") == "[::1]:7860"
    assert reachable("10.0.0.1:7860") == "10.0.0.1:7860"
    assert with_port("0.0.0.0:7860", "--listen") == "0.0.0.0:7860"
    host, _, port = with_port("127.0.0.1:0", "--listen").rpartition(":")
    with socket.socket() as server:
        server.bind((host, int(port)))
