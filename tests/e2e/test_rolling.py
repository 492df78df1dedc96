"""Every group and every frontend is stopped and started again, one after the other, under load: no call fails."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import pytest

from benchmarks.load import quantile
from pixelpod.client import AsyncClient
from tests.e2e.frontends import frontend
from tests.e2e.processes import wait_not_serving
from tests.e2e.steady_load import PlainClient, steady_load
from tests.e2e.timed_groups import TimedGroups

GROUPS = 3
STEP_SECONDS = 0.03
RATE = 30.0
"""Requests a second: half of what two groups compute."""
STOP_SECONDS = 15.0
DRAIN_DELAY = ("--drain-delay-seconds", "1")


class VirtualAddress:
    """An address as a Kubernetes Service has: each new connection goes to a server that is ready then."""

    def __init__(self, target: str) -> None:
        self.address = ""
        self.target = target
        """Where new connections go."""
        self.connections: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._connect(reader, writer))
        self.connections.add(connection)
        connection.add_done_callback(self.connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self.target.split(":")
        try:
            onward_reader, onward_writer = await asyncio.open_connection(host, int(port))
        except ConnectionError:
            writer.transport.abort()
            return
        await asyncio.gather(_forward(reader, onward_writer), _forward(onward_reader, writer))


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward all, and the end."""
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def virtual_address(target: str) -> AsyncIterator[VirtualAddress]:
    """Forward connections within the context. They end with their clients."""
    virtual = VirtualAddress(target)
    server = await asyncio.start_server(virtual.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    virtual.address = f"{host}:{port}"
    async with server:
        yield virtual
        async with asyncio.timeout(STOP_SECONDS):
            await asyncio.gather(*virtual.connections)


class Frontends:
    """Two frontends, each of which is started again at its address."""

    def __init__(self, groups: TimedGroups) -> None:
        self._groups = groups
        self._contexts = [ExitStack(), ExitStack()]
        self.all = [context.enter_context(frontend(groups.addresses, *DRAIN_DELAY)) for context in self._contexts]

    def restart(self, number: int) -> None:
        """Wait for the end of one that was told to stop, and start it again."""
        stopped = self.all[number]
        assert stopped.process.wait(STOP_SECONDS) == 0, stopped.process.log
        self._contexts[number].close()
        again = frontend(self._groups.addresses, *DRAIN_DELAY, address=stopped.address)
        self.all[number] = self._contexts[number].enter_context(again)

    def wait_groups(self, number: int) -> None:
        """Wait until each has so many groups."""
        for each in self.all:
            each.wait_groups(number)

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def groups(start_timed_groups: Callable[[int, float], TimedGroups]) -> TimedGroups:
    return start_timed_groups(GROUPS, STEP_SECONDS)


@pytest.fixture
def frontends(groups: TimedGroups) -> Iterator[Frontends]:
    frontends = Frontends(groups)
    yield frontends
    frontends.close()


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=[pytest.mark.slow, pytest.mark.timeout(400)])])
async def test_no_call_fails_while_everything_is_restarted(
    groups: TimedGroups, frontends: Frontends, rounds: int
) -> None:
    first, second = (each.address for each in frontends.all)
    async with virtual_address(first) as virtual, AsyncExitStack() as stack:
        # A Service's address, and clients that know both frontends and prefer one of them.
        targets = [virtual.address, f"ipv4:{first},{second}", f"ipv4:{second},{first}"]
        kinds = (AsyncClient, PlainClient)
        clients = [await stack.enter_async_context(kind(target)) for target in targets for kind in kinds]
        async with steady_load(clients, RATE) as load:
            for _ in range(rounds):
                for group in groups.all:
                    await asyncio.to_thread(group.end, signal.SIGTERM)
                    await asyncio.to_thread(group.start)
                    await asyncio.to_thread(frontends.wait_groups, GROUPS)
                for number, other in ((0, second), (1, first)):
                    leaving = frontends.all[number]
                    leaving.process.send(signal.SIGTERM)
                    await asyncio.to_thread(wait_not_serving, leaving.address)
                    virtual.target = other
                    await asyncio.to_thread(frontends.restart, number)
                    await asyncio.to_thread(frontends.wait_groups, GROUPS)
            await asyncio.sleep(1.0)
        print(f"{len(load.answers)} answers, {len(load.errors)} errors; ", end="")
        print(f"latency {quantile(load.seconds, 0.5):.2f} s (median), {max(load.seconds):.2f} s (worst)")
        assert load.errors == []
    for each in frontends.all:
        each.wait_idle()
        assert each.process.stop() == 0
    groups.assert_idle()
