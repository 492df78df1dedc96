"""Connections to groups, and requests over them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pixelpod.v1 import group_pb2, images_pb2
from service.availability import Availability
from service.group_connection import GroupConnection
from tests.events import events_of
from tests.service.conftest import WAIT_SECONDS, eventually

REQUEST = group_pb2.ExecuteRequest(
    request_id="r", model="tiny", prompt="x", parameters=images_pb2.ResolvedParameters(num_images=1, steps=4, seeds=[1])
)


@asynccontextmanager
async def connected(address: str, silent_seconds: float = 5.0) -> AsyncIterator[GroupConnection]:
    """Watch a group for the time of the block; begin when its first status is there."""
    connection = GroupConnection(address, silent_seconds, lambda: None, lambda group: None)
    watch = asyncio.create_task(connection.watch())
    try:
        await eventually(lambda: connection.availability is not Availability.GONE)
        yield connection
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await connection.close()


async def executed(
    connection: GroupConnection, timeout_seconds: float = WAIT_SECONDS
) -> list[images_pb2.GenerateEvent]:
    """Return all events of a request."""
    return events_of([message async for message in connection.execute_stream(REQUEST, timeout_seconds)])


async def executed_whole(
    connection: GroupConnection, timeout_seconds: float = WAIT_SECONDS
) -> images_pb2.GenerateResponse:
    """Return the whole answer of a request."""
    return images_pb2.GenerateResponse.FromString(await connection.execute(REQUEST, timeout_seconds))


async def executed_to_first_step(connection: GroupConnection) -> AsyncIterator[bytes]:
    """Send a request to a stub group; return the messages that come after its first step."""
    messages = connection.execute_stream(REQUEST, WAIT_SECONDS)
    await anext(messages)
    return messages
