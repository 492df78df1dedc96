"""Small stand-ins for a frontend and a group, run as processes of their own.

python -m tests.pixelpod.commands.fake_servers ROLE ADDRESS
    frontend   health is SERVING
    group      the status is READY
    warming    a group whose status is WARMING
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pixelpod.v1 import group_pb2, group_pb2_grpc

STATUSES = {
    "group": group_pb2.GroupStatus(group="fake", state=group_pb2.GROUP_STATE_READY),
    "warming": group_pb2.GroupStatus(group="fake", state=group_pb2.GROUP_STATE_WARMING, reason="64x64 is next"),
}


def fake_server(role: str, address: str) -> tuple[str, ...]:
    """Return the command that runs a stand-in."""
    return (sys.executable, "-m", "tests.pixelpod.commands.fake_servers", role, address)


class FakeGroup(group_pb2_grpc.WorkerGroupServicer):
    def __init__(self, status: group_pb2.GroupStatus) -> None:
        self._status = status

    async def WatchStatus(  # noqa: N802 -- gRPC's name
        self, request: group_pb2.WatchStatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[group_pb2.GroupStatus]:
        yield self._status
        await asyncio.Event().wait()


async def main(role: str, address: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = grpc.aio.server()
    if role == "frontend":
        servicer = health.aio.HealthServicer()
        await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    else:
        group_pb2_grpc.add_WorkerGroupServicer_to_server(FakeGroup(STATUSES[role]), server)
    server.add_insecure_port(address)
    await server.start()
    await stop.wait()
    await server.stop(grace=None)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
