"""Limits on connections over real sockets: silent, idle, too many in all, too many from one address."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pixelpod.server.connections import SCAN_SECONDS, SCANS_SHARE, ConnectionLimits, Connections
from pixelpod.server.errors import ErrorInterceptor
from pixelpod.server.open_sockets import AcceptedConnections
from pixelpod.server.transport import SERVER_OPTIONS, listen
from tests.raw_http import PREFACE, connections, is_closed, seconds_until_closed
from tests.service.conftest import eventually

WAIT_SECONDS = 10.0
WITHIN = ConnectionLimits(connections=1000, per_address=1000, idle_seconds=60, handshake_seconds=60)


class Server:
    """A health server under limits. Use `serve`."""

    def __init__(self, port: int, connections: Connections, evicted: Counter[str]) -> None:
        self.port = port
        self.connections = connections
        self.evicted = evicted

    def channel(self) -> grpc.aio.Channel:
        """Return a channel with a connection of its own."""
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", [("grpc.use_local_subchannel_pool", 1)])

    async def check(self, channel: grpc.aio.Channel | None = None) -> None:
        """Ask for its health over a channel, by default a fresh one."""
        if channel is None:
            async with self.channel() as fresh:
                return await self.check(fresh)
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=WAIT_SECONDS)
        return None

    async def watch(self, channel: grpc.aio.Channel) -> Any:
        """Return a Watch that has begun: its connection has a call under way."""
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        return watch

    async def until_open(self, number: int) -> None:
        """Wait until it has so many connections."""
        await eventually(lambda: self.connections.open == number)


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[Server]]]:
    started = []

    async def start(limits: ConnectionLimits, address: str = "127.0.0.1:0") -> Server:
        evicted: Counter[str] = Counter()
        watched = Connections(limits, lambda reason: evicted.update([reason]))
        server = grpc.aio.server(
            options=[*SERVER_OPTIONS, *watched.options], interceptors=(ErrorInterceptor(), *watched.interceptors)
        )
        servicer = health.aio.HealthServicer()
        await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = listen(server, address, insecure=True)
        await server.start()
        started.append((server, asyncio.create_task(watched.watch(port))))
        return Server(port, watched, evicted)

    yield start
    for server, watching in started:
        assert not watching.done()
        watching.cancel()
        await server.stop(None)


async def test_peers_that_never_speak_are_closed(serve) -> None:
    server = await serve(ConnectionLimits(1000, 1000, idle_seconds=60, handshake_seconds=0.5))
    with connections(server.port, 5) as opened:
        seconds = [await asyncio.to_thread(seconds_until_closed, connection) for connection in opened]
    assert 0.2 < max(seconds) < 5


async def test_idle_connections_are_closed_and_callers_connect_again(serve) -> None:
    server = await serve(ConnectionLimits(1000, 1000, idle_seconds=0.5, handshake_seconds=60))
    async with server.channel() as caller, server.channel() as watcher:
        watch = await server.watch(watcher)
        await server.check(caller)
        await server.until_open(2)
        with connections(server.port, 1, first_bytes=PREFACE) as (connection,):
            await asyncio.to_thread(seconds_until_closed, connection)
        await server.until_open(1)
        await server.check(caller)
        assert not watch.done()
    assert not server.evicted


@pytest.mark.parametrize("first_bytes", [b"", PREFACE], ids=["silent", "spoken"])
async def test_idle_connections_make_room(serve, first_bytes: bytes) -> None:
    server = await serve(ConnectionLimits(40, 1000, idle_seconds=60, handshake_seconds=60))
    async with server.channel() as busy:
        watch = await server.watch(busy)
        with connections(server.port, 100, first_bytes=first_bytes):
            await server.until_open(35)
            for _ in range(10):
                await server.check()
        assert not watch.done()
    assert set(server.evicted) == {"room"}


async def test_connections_with_calls_are_kept_and_the_excess_is_refused(serve) -> None:
    server = await serve(ConnectionLimits(8, 1000, idle_seconds=60, handshake_seconds=60))
    channels = [server.channel() for _ in range(8)]
    watches = [await server.watch(channel) for channel in channels]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.check()
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    await server.until_open(8)
    assert not any(watch.done() for watch in watches)
    assert not server.evicted
    await channels.pop().close()
    await server.until_open(7)
    await server.check()
    for channel in channels:
        await channel.close()


async def test_one_address_takes_no_more_than_its_share(serve) -> None:
    server = await serve(ConnectionLimits(1000, 10, idle_seconds=60, handshake_seconds=60))
    with (
        connections(server.port, 5, first_bytes=PREFACE) as mine,
        connections(server.port, 30, first_bytes=PREFACE, source="127.0.0.2") as others,
    ):
        await server.until_open(15)
        assert [is_closed(connection) for connection in mine] == [False] * 5
        assert sum(map(is_closed, others)) == 20
    assert server.evicted == {"address": 20}


async def test_an_address_that_is_busy_all_over_loses_its_youngest(serve) -> None:
    server = await serve(ConnectionLimits(1000, 2, idle_seconds=60, handshake_seconds=60))
    async with server.channel() as first, server.channel() as second, server.channel() as third:
        watches = [await server.watch(first), await server.watch(second)]
        await server.until_open(2)
        youngest = await server.watch(third)
        async with asyncio.timeout(WAIT_SECONDS):
            with pytest.raises(grpc.aio.AioRpcError):
                await youngest.read()
        assert await youngest.code() == grpc.StatusCode.UNAVAILABLE
        assert not any(watch.done() for watch in watches)


@pytest.mark.parametrize(("address", "host"), [("[::1]:0", "[::1]"), ("[::]:0", "127.0.0.1")])
async def test_calls_are_known_over_ipv6(serve, address: str, host: str) -> None:
    server = await serve(ConnectionLimits(8, 1000, idle_seconds=60, handshake_seconds=60), address)
    async with grpc.aio.insecure_channel(f"{host}:{server.port}") as channel:
        watch = await server.watch(channel)
        (connection,) = AcceptedConnections(server.port).scan()
        assert server.connections.calls.idle_since(connection) is None
        watch.cancel()


async def test_a_call_is_over_however_it_ends(serve) -> None:
    server = await serve(WITHIN)
    async with server.channel() as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        await server.check(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Check(health_pb2.HealthCheckRequest(service="unknown"), timeout=WAIT_SECONDS)
        (await server.watch(channel)).cancel()
        before = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in stub.Watch(health_pb2.HealthCheckRequest(), timeout=0.2):
                pass
        (connection,) = AcceptedConnections(server.port).scan()
        await eventually(lambda: server.connections.calls.idle_since(connection) is not None)
        assert before <= server.connections.calls.idle_since(connection) <= time.monotonic()


async def test_scans_take_a_small_share_of_a_core(serve) -> None:
    server = await serve(WITHIN)
    scans, spent = 0, 0.0
    scan = AcceptedConnections.scan

    def timed(self: AcceptedConnections) -> Any:
        nonlocal scans, spent
        began = time.thread_time()
        try:
            return scan(self)
        finally:
            scans, spent = scans + 1, spent + time.thread_time() - began

    with connections(server.port, 300, first_bytes=PREFACE), pytest.MonkeyPatch.context() as patched:
        await server.until_open(300)
        patched.setattr(AcceptedConnections, "scan", timed)
        await asyncio.sleep(2)
    assert 1 <= scans <= 2 / SCAN_SECONDS + 1
    assert spent / 2 < 2 * SCANS_SHARE
