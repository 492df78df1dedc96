"""One owner per port; plain text stays on this machine; pings are allowed; connections age without loss."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pixelpod.server.transport import (
    AGE_GRACE_MARGIN_SECONDS,
    SERVER_OPTIONS,
    AddressInUse,
    PlainTextRefused,
    connection_age_options,
    listen,
)

WAIT_SECONDS = 10.0


async def test_second_server_on_a_port_is_refused_by_address() -> None:
    first = grpc.aio.server(options=SERVER_OPTIONS)
    port = listen(first, "127.0.0.1:0")
    await first.start()
    try:
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{port}"):
            listen(grpc.aio.server(options=SERVER_OPTIONS), f"127.0.0.1:{port}")
    finally:
        await first.stop(grace=None)


async def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(AddressInUse, match=r"192\.0\.2\.1"):
        listen(grpc.aio.server(options=SERVER_OPTIONS), "192.0.2.1:0", insecure=True)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "localhost.example:0", ":0"])
async def test_plain_text_beyond_loopback_is_refused_before_anything_listens(address: str) -> None:
    with pytest.raises(PlainTextRefused, match="--insecure"):
        listen(grpc.aio.server(options=SERVER_OPTIONS), address)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.0.0.2:0", "localhost:0"])
async def test_plain_text_on_loopback_is_fine(address: str) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    assert listen(server, address) > 0
    await server.stop(grace=None)


@pytest.fixture
def servicer() -> health.aio.HealthServicer:
    return health.aio.HealthServicer()


@pytest.fixture
async def serve_health(servicer: health.aio.HealthServicer) -> AsyncIterator:
    servers = []

    async def serve(options: Sequence[tuple[str, int]], *interceptors: grpc.aio.ServerInterceptor) -> str:
        server = grpc.aio.server(interceptors=interceptors, options=options)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = listen(server, "127.0.0.1:0")
        await server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield serve
    for server in servers:
        await server.stop(grace=None)


PINGS_FASTER = 20
"""How much faster than in life pings are sent and allowed here."""

PING_SECONDS = 10
"""In life: what clients may do."""


async def _watch_for(seconds: float, address: str) -> str:
    """Return how a call without messages ends over a connection with pings; it is given up after `seconds`."""
    options = [
        ("grpc.keepalive_time_ms", PING_SECONDS * 1000 // PINGS_FASTER),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with grpc.aio.insecure_channel(address, options) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=seconds)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            _ = [answer async for answer in call]
    return f"{ended.value.code().name}: {ended.value.details()}"


async def test_pings_every_ten_seconds_are_allowed_and_would_not_be_by_default(serve_health) -> None:
    """The same with all times divided: an idle call of ten pings ends by its deadline, not by GOAWAY."""
    faster = [(name, value // PINGS_FASTER if name.endswith("_ms") else value) for name, value in SERVER_OPTIONS]
    ours, default = await serve_health(faster), await serve_health([])
    seconds = 10 * PING_SECONDS / PINGS_FASTER
    allowed, refused = await asyncio.gather(_watch_for(seconds, ours), _watch_for(seconds, default))
    assert allowed.startswith("DEADLINE_EXCEEDED")
    assert refused.startswith("UNAVAILABLE")
    assert "ping" in refused.lower()


class PeersOfChecks(grpc.aio.ServerInterceptor):
    """Notes from which ports health is checked: one for each connection."""

    def __init__(self) -> None:
        self.peers: set[str] = set()

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if not handler_call_details.method.endswith("/Check"):
            return handler

        async def check(request: Any, context: Any) -> Any:
            self.peers.add(context.peer())
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(check, handler.request_deserializer, handler.response_serializer)


async def test_an_aged_connection_is_replaced_and_its_calls_are_finished(serve_health, servicer) -> None:
    options = connection_age_options(age_seconds=0.2, longest_call_seconds=10.0)
    assert dict(options)["grpc.max_connection_age_grace_ms"] == (10.0 + AGE_GRACE_MARGIN_SECONDS) * 1000
    connections = PeersOfChecks()
    address = await serve_health([*SERVER_OPTIONS, *options], connections)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        call = stub.Watch(health_pb2.HealthCheckRequest(), timeout=WAIT_SECONDS)
        await call.read()
        changed = asyncio.create_task(call.read())
        until = time.monotonic() + 1.2
        while time.monotonic() < until:
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_SECONDS)
        assert len(connections.peers) > 2
        # The call still goes on over the first connection. It is not left to end at its deadline: then the server ends
        # it too, and closes the aged connection, which the client may notice first.
        assert not changed.done()
        await servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert (await changed).status == health_pb2.HealthCheckResponse.NOT_SERVING
        call.cancel()
