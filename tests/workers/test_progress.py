from __future__ import annotations

from pixelpod.v1 import group_pb2
from tests.workers.models import accept, make_request
from workers.batching import make_batch
from workers.estimates import Estimates
from workers.progress import Progress
from workers.request import RequestedImage


async def test_steps_are_told_over_all_batches_of_a_request() -> None:
    request = accept(make_request(seeds=list(range(6)), steps=3))
    progress, messages = Progress(request, Estimates()), request.messages()

    async def told() -> tuple[int, int]:
        told = group_pb2.ExecuteEvents.FromString(await anext(messages)).progress
        return told.step, told.steps

    request.taken = 4
    progress.batch_begins(make_batch([RequestedImage(request, index) for index in range(4)]))
    progress.step_done(1)
    assert await told() == (1, 6), "two batches of three steps"
    progress.batch_done()
    request.taken = 6
    progress.batch_begins(make_batch([RequestedImage(request, index) for index in (4, 5)]))
    progress.step_done(2)
    assert await told() == (5, 6)
