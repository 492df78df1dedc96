from __future__ import annotations

from pixelpod.v1 import group_pb2, images_pb2
from tests.workers.models import accept, make_request
from workers.batching import make_batch
from workers.estimates import Estimates
from workers.progress import Progress
from workers.request import RequestedImage


async def test_the_beginning_is_told_before_the_first_step_and_only_once() -> None:
    request = accept(make_request(seeds=list(range(6)), steps=3))
    progress, messages = Progress(request, Estimates()), request.messages()

    async def told() -> tuple[int, int]:
        told = group_pb2.ExecuteEvents.FromString(await anext(messages)).progress
        return told.step, told.steps

    request.taken = 4
    progress.batch_begins(make_batch([RequestedImage(request, index) for index in range(4)]))
    assert await told() == (0, 6), "two batches of three steps"
    progress.step_done(1)
    assert await told() == (1, 6)
    progress.batch_done()
    request.taken = 6
    progress.batch_begins(make_batch([RequestedImage(request, index) for index in (4, 5)]))
    request.end(images_pb2.GenerateResponse(request_id="r-1"))
    last = group_pb2.ExecuteEvents.FromString(await anext(messages))
    assert last.done.request_id == "r-1"
    assert not last.HasField("progress"), "no second beginning"
