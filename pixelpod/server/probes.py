"""A port for Kubernetes' gRPC probes, which know neither TLS nor tokens: grpc.health.v1 and nothing else."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pixelpod.server.transport import SERVER_OPTIONS, listen

LIVE = "live"
"""The health service name of liveness: where it is NOT_SERVING, only a new process helps. Other names are readiness."""


class ProbeServer:
    """Answers health checks at an address of its own.

    Args:
        address: Where, host:port.
        servicer: The answers; the main server has the same ones.

    Raises:
        AddressInUse: if the address can't be had.
    """

    def __init__(self, address: str, servicer: health.aio.HealthServicer) -> None:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self._server)
        self.port = listen(self._server, address, insecure=True)  # health is no secret

    async def start(self) -> None:
        """Answer from now on."""
        await self._server.start()

    async def stop(self) -> None:
        """End all connections at once."""
        await self._server.stop(None)


def serving(condition: bool) -> health_pb2.HealthCheckResponse.ServingStatus:
    """Return SERVING where `condition` holds, else NOT_SERVING."""
    statuses = health_pb2.HealthCheckResponse.ServingStatus
    return statuses.SERVING if condition else statuses.NOT_SERVING
