"""Callers of one computation whose times are different."""

from __future__ import annotations

from pixelpod.server.errors import DeadlinePassed, Unavailable
from tests.service.conftest import eventually


async def test_joined_caller_whose_time_runs_out_leaves_alone(plane, call) -> None:
    first = call()
    await first.read("progress")
    second = call(seconds=0.05)
    assert isinstance(await second.error(), DeadlinePassed)
    assert not first.task.done()
    plane.go_on()
    await first.whole()
    assert (len(plane.records), plane.stopped) == (1, 0)


async def test_joined_caller_with_more_time_begins_anew(plane, call) -> None:
    first = call(seconds=0.1)
    await first.read("progress")
    second = call()
    assert isinstance(await first.error(), DeadlinePassed)
    await eventually(lambda: len(plane.records) == 2)
    assert plane.records == [first.record, second.record]
    plane.go_on()
    await second.whole()
    assert second.kinds[-1] == "done"
    assert second.kinds.count("accepted") == 2
    answer_ids = {event.accepted.answer_id for event in second.events if not isinstance(event, memoryview)}
    assert len(answer_ids - {""}) == 2


async def test_computation_refused_for_its_own_callers_deadline_is_not_begun_again(plane, call) -> None:
    """A group may see before the time is over that it won't do."""
    plane.error = DeadlinePassed("too many before you", reason="DEADLINE_UNREACHABLE")
    plane.steps.set()
    assert (await call().error()).reason == "DEADLINE_UNREACHABLE"
    assert len(plane.records) == 1


async def test_joined_caller_that_got_images_does_not_get_those_of_another_computation(plane, call) -> None:
    plane.go_on_to_first_chunk()
    first = call(seconds=0.1)
    second = call()
    await second.read("chunk")
    assert isinstance(await first.error(), DeadlinePassed)
    error = await second.error()
    assert isinstance(error, Unavailable)
    assert (error.reason, error.retry_after_seconds) == ("JOINED_CALL_ENDED", 0)
    assert len(plane.records) == 1
