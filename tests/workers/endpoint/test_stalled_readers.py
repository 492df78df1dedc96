"""A frontend that does not read its answers gives their places on the group back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pixelpod.v1 import images_pb2
from tests.e2e.processes import wait_until
from tests.stalled_readers import StalledReader
from tests.workers.endpoint.served import WAIT_SECONDS, Served
from tests.workers.models import make_request

IMAGE = bytes(100_000)


@pytest.mark.parametrize("method", ["Execute", "ExecuteStream"])
async def test_a_frontend_that_reads_nothing_holds_no_place_for_long(serve: Callable[..., Served], method: str) -> None:
    served = serve(reader_stall_seconds=1.0, in_flight_limit=2)
    reader = await StalledReader.connect(int(served.address.rpartition(":")[2]))
    try:
        for _ in range(2):
            await reader.call(f"/pixelpod.v1.WorkerGroup/{method}", make_request())
        await asyncio.to_thread(served.wait_in_flight, 2)
        assert served.queue.load().free_slots == 0
        for request in await asyncio.to_thread(served.take):
            request.post_image(0, IMAGE)
            request.end(images_pb2.GenerateResponse(images=[images_pb2.Image(index=0)]))
        await asyncio.to_thread(wait_until, lambda: served.queue.load().in_flight == 0, WAIT_SECONDS, lambda: "held")
    finally:
        await reader.close()
    assert all(b"READER_STALLED" in trailers for trailers in reader.ended.values())
    assert len(reader.ended) == 2
    assert served.ended("RESOURCE_EXHAUSTED") == 2
    assert served.metrics.registry.get_sample_value("pixelpod_group_readers_ended_total", {"reason": "stalled"}) == 2
