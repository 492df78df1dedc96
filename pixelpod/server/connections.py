"""Limits on a server's connections: in all, for each address, while they shake hands, and while they idle.

gRPC itself refuses connections over the limit in all, and ends those that never speak or that idle for long. What it
can't do is tell callers from peers that only hold connections. So a task scans the open ones, and before the limit is
reached it evicts some that have no call under way. A caller whose idle connection was closed connects again with its
next call.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from pixelpod.server.eviction import Candidate, choose, roomy
from pixelpod.server.handlers import function_of, with_function
from pixelpod.server.open_sockets import Accepted, AcceptedConnections, Peer, cut, peer_of

logger = logging.getLogger(__name__)

SCAN_SECONDS = 0.1
"""Between two scans of the open connections, at least."""
SCANS_SHARE = 0.005
"""Of one core's time, all that scans may take: they are made more rarely where each takes long."""
WARNING_SECONDS = 60.0
"""Between two warnings about evictions."""
CALLS_PER_CONNECTION = 1024
"""Calls at a time on one connection; gRPC's clients hold back the rest."""
FORGET_ABOVE = 1000
"""Connections that are gone and whose calls are still remembered, at most, beside as many again as are open."""
LONGEST_SECONDS = 2_000_000
"""gRPC takes milliseconds in 31 bits."""


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections a server takes, and for how long."""

    connections: int
    per_address: int
    idle_seconds: float
    handshake_seconds: float

    @property
    def options(self) -> tuple[tuple[str, int], ...]:
        """The options of the gRPC server, which enforces all but the limit for each address."""
        return (
            ("grpc.max_allowed_incoming_connections", self.connections),
            ("grpc.max_connection_idle_ms", round(self.idle_seconds * 1000)),
            ("grpc.server_handshake_timeout_ms", round(self.handshake_seconds * 1000)),
            ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION),
        )


class ConnectionSettings(BaseSettings):
    """Settings of every server of ours about its connections."""

    model_config = SettingsConfigDict(frozen=True, use_attribute_docstrings=True)

    max_connections: int = Field(default=2048, ge=8, le=1_000_000)
    """Connections at a time. Near the limit idle ones are closed; over it new ones are. Fewer are taken where the limit
    on open files is low."""
    max_connections_per_address: int = Field(default=1024, ge=1)
    """Connections at a time from one IP address, behind which a proxy may have many callers. Over it the longest idle
    are closed."""
    max_connection_idle_seconds: float = Field(default=300.0, gt=0, le=LONGEST_SECONDS)
    """A connection without a call for this long is closed; the caller's next call opens another."""
    handshake_timeout_seconds: float = Field(default=10.0, gt=0, le=LONGEST_SECONDS)
    """How long TCP, TLS and HTTP/2 may take to set up a connection."""

    @property
    def connection_limits(self) -> ConnectionLimits:
        """The same, as a server takes it."""
        return ConnectionLimits(
            self.max_connections,
            self.max_connections_per_address,
            self.max_connection_idle_seconds,
            self.handshake_timeout_seconds,
        )


class CallTracker(grpc.aio.ServerInterceptor):
    """Knows which connections have calls under way. It goes last: calls that are refused before do not count."""

    def __init__(self) -> None:
        self._running: Counter[Peer] = Counter()
        self._last_ended: dict[Peer, float] = {}

    def idle_since(self, connection: Accepted) -> float | None:
        """Return since when a connection has had no call, by time.monotonic; None: it has one."""
        if self._running[connection.peer]:
            return None
        return max(connection.seen, self._last_ended.get(connection.peer, 0.0))

    def forget_closed(self, connections: Sequence[Accepted]) -> None:
        """Forget all connections but these, now and then."""
        if len(self._last_ended) > 2 * len(connections) + FORGET_ABOVE:
            peers = {connection.peer for connection in connections}
            self._last_ended = {peer: ended for peer, ended in self._last_ended.items() if peer in peers}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the call's handler, whatever its kind."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return with_function(handler, self._tracking(function_of(handler)))

    def _tracking(self, handle: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def tracked(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            self._begin(context)
            return handle(request, context)

        async def awaited(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            self._begin(context)
            return await handle(request, context)

        # gRPC and ErrorInterceptor ask a handler for its kind.
        return awaited if inspect.iscoroutinefunction(handle) else tracked

    def _begin(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        peer = peer_of(context.peer())

        def end(_: object) -> None:
            self._running[peer] -= 1
            if not self._running[peer]:
                del self._running[peer]
            self._last_ended[peer] = time.monotonic()

        self._running[peer] += 1
        context.add_done_callback(end)  # type: ignore[arg-type]  # the stubs name a class where any function does


class Connections:
    """Holds one server to its limits while `watch` runs.

    Args:
        limits: Of the server.
        on_evicted: Called with the reason for each connection that `watch` closes.
    """

    def __init__(self, limits: ConnectionLimits, on_evicted: Callable[[str], None] = lambda reason: None) -> None:
        self._limits = limits
        self._on_evicted = on_evicted
        self.calls = CallTracker()
        """What connections do."""
        self._warn_at = 0.0
        self.open = 0
        """Connections at the last scan."""

    @property
    def options(self) -> tuple[tuple[str, int], ...]:
        """For the gRPC server."""
        return self._limits.options

    @property
    def interceptors(self) -> tuple[grpc.aio.ServerInterceptor, ...]:
        """For the gRPC server, behind ErrorInterceptor and all that refuse calls."""
        return (self.calls,) if AcceptedConnections.available else ()

    async def watch(self, port: int) -> None:
        """Scan and evict until cancelled, while the server listens on `port`."""
        if not AcceptedConnections.available:
            logger.warning("this system does not list a process's connections: they are limited in all only")
            return
        accepted = AcceptedConnections(port)
        while True:
            began = time.thread_time()
            try:
                self._enforce(accepted)
            except OSError as error:  # no descriptor left to look with
                logger.error("the connections can't be listed", extra={"error": error.strerror})
            await asyncio.sleep(max(SCAN_SECONDS, (time.thread_time() - began) / SCANS_SHARE))

    def _enforce(self, accepted: AcceptedConnections) -> None:
        connections = accepted.scan()
        self.open = len(connections)
        self.calls.forget_closed(connections)
        if self.open <= min(self._limits.per_address, roomy(self._limits.connections)):
            return
        candidates = [Candidate(connection, self.calls.idle_since(connection)) for connection in connections]
        evicted: Counter[str] = Counter()
        for connection, reason in choose(candidates, self._limits.connections, self._limits.per_address):
            if cut(connection):
                evicted[reason] += 1
                self._on_evicted(reason)
        if evicted and time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + WARNING_SECONDS
            (address, most), *_ = Counter(connection.peer.address for connection in connections).most_common(1)
            logger.warning(
                "connections were closed because there are too many",
                extra={"open": self.open, **evicted, "most_from": address, "these": most},
            )
