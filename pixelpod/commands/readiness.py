"""Waits until a frontend serves, and tells meanwhile what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pixelpod.v1 import group_pb2, group_pb2_grpc

POLL_SECONDS = 0.2
ANSWER_SECONDS = 2.0
CHANNEL_OPTIONS = (
    # A server that starts is found soon after it listens, however long that took.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


async def until_serving(frontend: str, group: str, tell: Callable[[str], None]) -> None:
    """Return once the frontend's health is SERVING.

    Args:
        frontend: Address of the frontend.
        group: Address of the group that it waits for.
        tell: Called with a sentence whenever what is waited for changes.
    """
    async with (
        grpc.aio.insecure_channel(frontend, CHANNEL_OPTIONS) as frontend_channel,
        grpc.aio.insecure_channel(group, CHANNEL_OPTIONS) as group_channel,
    ):
        told = ""
        while not await _is_serving(frontend_channel):
            waiting_for = await _state_of_group(group_channel)
            if waiting_for != told:
                tell(f"waiting for the {waiting_for}")
                told = waiting_for
            await asyncio.sleep(POLL_SECONDS)


async def _is_serving(channel: grpc.aio.Channel) -> bool:
    try:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=ANSWER_SECONDS
        )
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def _state_of_group(channel: grpc.aio.Channel) -> str:
    """Return what the group does, for a person."""
    statuses = group_pb2_grpc.WorkerGroupStub(channel).WatchStatus(
        group_pb2.WatchStatusRequest(), timeout=ANSWER_SECONDS
    )
    try:
        async for status in statuses:
            state = group_pb2.GroupState.Name(status.state).removeprefix("GROUP_STATE_")
            return f"frontend: group {status.group} is READY" if state == "READY" else f"group: {state} {status.reason}"
    except grpc.aio.AioRpcError:
        pass
    finally:
        statuses.cancel()
    return "group: its processes start"
