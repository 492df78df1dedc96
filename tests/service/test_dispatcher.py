"""Requests wait in order, get each place once, and are refused at once where waiting is of no use."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from pixelpod.server.errors import DeadlinePassed, Overloaded, Unavailable
from service.availability import Availability
from service.dispatcher import Place
from tests.service.fake_groups import FakeGroup
from tests.service.scene import HIGH, LOW, Scene, ticket
from tests.service.stub_group import measured

ONE_SECOND_EACH = measured(0.0, 0.25, 1, 2, 4)
"""Batches of any size take one second."""


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene(FakeGroup())
    yield scene
    await scene.close()


async def test_room_goes_to_the_most_urgent(scene: Scene) -> None:
    low, late, soon, high = ticket(10, LOW), ticket(30), ticket(20), ticket(60, HIGH)
    await scene.arrive(low, late, soon, high)
    assert (scene.placed, scene.waiting) == ([], 4)
    await scene.tell(scene.groups[0], free_slots=1)
    assert (scene.placed, scene.waiting) == ([high], 3)
    await scene.tell(scene.groups[0], free_slots=3)
    assert (scene.placed, scene.waiting) == ([high, soon, late], 1), "the first is still on its way and takes room"


async def test_a_place_given_back_is_used_at_once(scene: Scene) -> None:
    first, second = ticket(), ticket()
    await scene.tell(scene.groups[0], free_slots=1)
    await scene.arrive(first, second)
    assert scene.placed == [first]
    await scene.leave(first)
    assert scene.placed == [first, second]


async def test_a_request_that_leaves_just_as_it_is_placed_gives_the_place_back(scene: Scene) -> None:
    first, second = ticket(), ticket()
    await scene.arrive(first, second)
    scene.groups[0].tell(free_slots=1)
    scene.tasks[first].cancel()
    scene.dispatcher.group_changed(scene.groups[0])
    await scene.settle()
    assert scene.placed == [second]


async def test_a_request_that_no_group_has_room_for_lets_others_pass(scene: Scene) -> None:
    """Their room is of no use to it: it is for a size that only the other group is warm for."""
    wide = ticket()
    wide.parameters.width = 96
    small = ticket(seconds=70)
    only_small = FakeGroup("b")
    assert only_small.model is not None
    only_small.model.buckets[1].warm = False
    only_small.tell(free_slots=0)
    scene.groups.append(only_small)
    await scene.arrive(wide, small)
    await scene.tell(only_small, free_slots=1, model=only_small.model)
    assert scene.placed == [small]


async def test_too_many_waiting_are_refused_with_a_delay() -> None:
    group = FakeGroup(backlog_seconds=10.0, batch_seconds=ONE_SECOND_EACH)
    scene = Scene(group, queue_limit=2)
    await scene.arrive(ticket(), ticket(), refused := ticket(seconds=61))
    error = await scene.failure(refused)
    assert isinstance(error, Overloaded)
    assert error.reason == "QUEUE_FULL"
    assert error.retry_after_seconds == pytest.approx((10 + 2 * 0.25) / 2)
    assert scene.waiting == 2
    await scene.close()


async def test_what_would_end_too_late_is_refused_at_once() -> None:
    group = FakeGroup(backlog_seconds=10.0, batch_seconds=ONE_SECOND_EACH)
    scene = Scene(group)
    await scene.arrive(early := ticket(seconds=12.5, num_images=4), late := ticket(seconds=12.5))
    error = await scene.failure(late)
    assert isinstance(error, Overloaded)
    assert error.reason == "OVERLOADED"
    assert "done in 12 s" in error.message
    assert error.retry_after_seconds == pytest.approx(1.1 * 12 - 12.5, abs=0.05)
    assert early in scene.tasks
    await scene.close()


async def test_what_takes_longer_than_its_time_is_no_overload() -> None:
    scene = Scene(FakeGroup(free_slots=1, batch_seconds=ONE_SECOND_EACH))
    await scene.arrive(short := ticket(seconds=0.5))
    error = await scene.failure(short)
    assert isinstance(error, DeadlinePassed)
    assert error.reason == "DEADLINE_TOO_SHORT"
    await scene.close()


async def test_a_request_that_can_no_longer_be_done_stops_waiting() -> None:
    group = FakeGroup(batch_seconds=measured(0.0, 0.25, 1))
    scene = Scene(group)
    began = time.monotonic()
    await scene.arrive(waiting := ticket(seconds=1.3))
    error = await scene.failure(waiting)
    assert isinstance(error, DeadlinePassed)
    assert error.reason == "DEADLINE_UNREACHABLE"
    assert 0.5 < time.monotonic() - began < 1.2, "0.7 s of the 1.3 are the least that it computes"
    await scene.close()


async def test_a_full_queue_drops_what_can_not_be_done_for_what_is_more_urgent() -> None:
    group = FakeGroup(batch_seconds=ONE_SECOND_EACH)
    scene = Scene(group, queue_limit=2)
    hopeful, hopeless, urgent = ticket(), ticket(seconds=30, priority=LOW), ticket(priority=HIGH)
    await scene.arrive(hopeful, hopeless)
    await scene.arrive(kept_out := ticket(seconds=20))
    assert (await scene.failure(kept_out)).reason == "QUEUE_FULL", "all that wait can still be done"
    await scene.tell(group, backlog_seconds=40.0, batch_seconds=ONE_SECOND_EACH)
    await scene.arrive(urgent)
    displaced = await scene.failure(hopeless)
    assert isinstance(displaced, Overloaded)
    assert displaced.reason == "DISPLACED"
    assert scene.waiting == 2
    await scene.arrive(least := ticket(priority=LOW))
    assert (await scene.failure(least)).reason == "QUEUE_FULL", "nothing goes for what is less urgent"
    await scene.close()


async def test_without_a_group_new_requests_end_at_once_and_waiting_ones_soon() -> None:
    group = FakeGroup()
    scene = Scene(group, no_group_seconds=0.2)
    await scene.arrive(waiting := ticket())
    await scene.become(group, Availability.GONE)
    await scene.arrive(new := ticket())
    assert scene.tasks[new].done()
    refused = await scene.failure(new)
    assert isinstance(refused, Unavailable)
    assert refused.reason == "GROUPS_NOT_READY"
    began = time.monotonic()
    assert (await scene.failure(waiting)).reason == "GROUPS_NOT_READY"
    assert time.monotonic() - began < 2
    await scene.close()


async def test_a_group_that_comes_back_in_time_takes_what_waits() -> None:
    group = FakeGroup()
    scene = Scene(group, no_group_seconds=30)
    await scene.arrive(waiting := ticket())
    await scene.become(group, Availability.GONE)
    group.tell(free_slots=1)
    await scene.become(group, Availability.READY)
    assert scene.placed == [waiting]
    await scene.close()


async def test_stopping_ends_what_waits(scene: Scene) -> None:
    await scene.arrive(waiting := ticket())
    scene.dispatcher.end_all(Unavailable("stopping", reason="FRONTEND_STOPPING"))
    assert (await scene.failure(waiting)).reason == "FRONTEND_STOPPING"
    assert scene.waiting == 0


async def test_a_lost_place_is_exchanged_for_another() -> None:
    first, second = FakeGroup("a", free_slots=1), FakeGroup("b", free_slots=1, backlog_seconds=1.0)
    scene = Scene(first, second)
    each = ticket()
    with scene.dispatcher.queued(each):
        place: Place = await scene.dispatcher.place(each)
        assert place.group is first
        each.shunned.add((first.address, place.epoch))
        scene.dispatcher.wait_again(each)
        assert first.load.room == 1
        place = await scene.dispatcher.place(each)
        assert place.group is second
        assert second.load.room == 0
    assert second.load.room == 1
    await scene.close()
