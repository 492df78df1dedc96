"""What happens to a computation when its callers leave, and when the frontend closes."""

from __future__ import annotations

import asyncio

from pixelpod.server.events import Events
from pixelpod.v1 import images_pb2
from service.answers import Answers
from service.metrics import FrontendMetrics
from service.records import RequestRecord
from tests.service.answers.plane import CHUNKS, KEPT_BYTES, REQUEST, Call, kept_bytes, progress, repeats
from tests.service.conftest import WAIT_SECONDS, eventually


async def test_last_caller_leaves_while_steps_are_computed(plane, metrics, call) -> None:
    calls = [call(), call()]
    for each in calls:
        await each.read("progress")
    await calls[0].leave()
    await asyncio.sleep(0)
    assert plane.stopped == 0
    await calls[1].leave()
    await eventually(lambda: plane.stopped == 1)
    plane.go_on()
    await call().whole()
    assert len(plane.records) == 2
    assert repeats(metrics, "joined") == 1


async def test_a_repeat_right_after_the_last_caller_left_computes_anew(plane, call) -> None:
    """In the moment between the cancel and the end of the task, there is nothing to join."""
    first = call()
    await first.read("progress")
    first.task.cancel()
    second = call()
    plane.go_on()
    await second.whole()
    assert second.kinds[-1] == "done"
    assert (len(plane.records), plane.stopped) == (2, 1)


async def test_first_caller_leaves_while_a_second_is_joined(plane, call) -> None:
    first = call()
    await first.read("progress")
    second = call()
    await second.read("progress")
    await first.leave()
    plane.go_on()
    await second.whole()
    assert second.kinds[-1] == "done"
    assert (len(plane.records), plane.stopped) == (1, 0)


async def test_last_caller_leaves_while_images_come(plane, metrics, call) -> None:
    plane.go_on_to_first_chunk()
    first = call()
    await first.read("chunk")
    await first.leave()
    assert plane.stopped == 0
    taking_up = call(resume_from=images_pb2.ResumePoint(answer_id=first.answer_id, index=0, offset=10))
    await taking_up.read("accepted")
    plane.done.set()
    await taking_up.whole()
    assert taking_up.chunks == CHUNKS[1:]
    assert taking_up.answer_id == first.answer_id
    assert (len(plane.records), plane.stopped) == (1, 0)
    assert repeats(metrics, "joined") == 1


async def test_answer_that_nobody_waited_for_is_kept(plane, metrics, call) -> None:
    plane.go_on_to_first_chunk()
    first = call()
    await first.read("chunk")
    await first.leave()
    plane.done.set()
    await eventually(lambda: kept_bytes(metrics) != 0)
    taking_up = call(resume_from=images_pb2.ResumePoint(answer_id=first.answer_id, index=1, offset=0))
    await taking_up.whole()
    assert taking_up.chunks == CHUNKS[2:]
    assert len(plane.records) == 1


async def test_images_of_a_first_batch_do_not_keep_the_next_ones_going(plane) -> None:
    async def two_batches(request: images_pb2.GenerateRequest, record: RequestRecord) -> Events:
        yield progress(1)
        yield CHUNKS[0]
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            plane.stopped += 1
            raise

    answers = Answers(two_batches, FrontendMetrics(), 60.0, KEPT_BYTES)
    first = Call(answers, "", REQUEST, WAIT_SECONDS)
    await first.read("chunk")
    await first.leave()
    await eventually(lambda: plane.stopped == 1)


async def test_close_stops_what_nobody_waits_for(plane, metrics) -> None:
    answers = Answers(plane.generate, metrics, 60.0, KEPT_BYTES)
    plane.go_on_to_first_chunk()
    first = Call(answers, "", REQUEST, WAIT_SECONDS)
    await first.read("chunk")
    await first.leave()
    async with asyncio.timeout(WAIT_SECONDS):
        await answers.close()
    assert plane.stopped == 1
    assert kept_bytes(metrics) == 0
