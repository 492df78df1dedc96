"""A port for Kubernetes' gRPC probes, which know neither TLS nor tokens: grpc.health.v1 and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pixelpod.server.connections import ConnectionLimits, Connections
from pixelpod.server.errors import ErrorInterceptor
from pixelpod.server.transport import SERVER_OPTIONS, listen

LIVE = "live"
"""The health service name of liveness: where it is NOT_SERVING, only a new process helps. Other names are readiness."""

LIMITS = ConnectionLimits(connections=64, per_address=16, idle_seconds=15.0, handshake_seconds=5.0)
"""The kubelet connects anew for each probe, and leaves."""


class ProbeServer:
    """Answers health checks at an address of its own.

    Args:
        address: Where, host:port.
        servicer: The answers; the main server has the same ones.
        on_evicted: Called with the reason for each connection that is closed because there are too many.

    Raises:
        AddressInUse: if the address can't be had.
    """

    def __init__(
        self,
        address: str,
        servicer: health.aio.HealthServicer,
        on_evicted: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._connections = Connections(LIMITS, on_evicted)
        self._server = grpc.aio.server(
            options=[*SERVER_OPTIONS, *self._connections.options],
            interceptors=(ErrorInterceptor(), *self._connections.interceptors),
        )
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self._server)
        self.port = listen(self._server, address, insecure=True)  # health is no secret

    async def start(self) -> None:
        """Answer from now on."""
        await self._server.start()
        self._watching = asyncio.create_task(self._connections.watch(self.port))

    async def stop(self) -> None:
        """End all connections at once."""
        self._watching.cancel()
        await self._server.stop(None)


def serving(condition: bool) -> health_pb2.HealthCheckResponse.ServingStatus:
    """Return SERVING where `condition` holds, else NOT_SERVING."""
    statuses = health_pb2.HealthCheckResponse.ServingStatus
    return statuses.SERVING if condition else statuses.NOT_SERVING
