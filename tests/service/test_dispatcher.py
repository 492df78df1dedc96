"""Requests wait in order, get each place once, and are refused at once where waiting is of no use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelpod.server.errors import DeadlinePassed, Overloaded, RequestError, Unavailable
from pixelpod.v1 import images_pb2
from service.admission import Ticket
from service.dispatcher import Dispatcher, Place
from service.group_connection import Availability
from service.metrics import FrontendMetrics
from tests.service.fake_groups import FakeGroup
from tests.service.stub_group import measured

LOW, NORMAL, HIGH = images_pb2.PRIORITY_LOW, images_pb2.PRIORITY_NORMAL, images_pb2.PRIORITY_HIGH
ONE_SECOND_EACH = measured(0.0, 0.25, 1, 2, 4)
"""Batches of any size take one second."""


def ticket(seconds: float = 60.0, priority: int = NORMAL, num_images: int = 1) -> Ticket:
    parameters = images_pb2.ResolvedParameters(
        width=64, height=64, num_images=num_images, steps=4, priority=images_pb2.Priority.ValueType(priority)
    )
    return Ticket(parameters, time.monotonic() + seconds, "tiny")


class Scene:
    """A dispatcher over fake groups, and the requests that wait in it."""

    def __init__(self, *groups: FakeGroup, queue_limit: int = 8, no_group_seconds: float = 5.0) -> None:
        self.groups = list(groups)
        self.metrics = FrontendMetrics()
        self.dispatcher = Dispatcher(self.groups, self.metrics, queue_limit, no_group_seconds)
        self.placed: list[Ticket] = []
        """In the order of their placing."""
        self.tasks: dict[Ticket, asyncio.Task[None]] = {}

    async def arrive(self, *tickets: Ticket) -> None:
        """Let requests arrive one after the other; each keeps the place that it gets until it is told to leave."""
        for each in tickets:
            self.tasks[each] = asyncio.create_task(self._hold(each))
            await self.settle()

    async def leave(self, *tickets: Ticket) -> None:
        for each in tickets:
            self.tasks[each].cancel()
        await asyncio.gather(*(self.tasks.pop(each) for each in tickets), return_exceptions=True)
        await self.settle()

    async def tell(self, group: FakeGroup, **status: object) -> None:
        group.tell(**status)
        self.dispatcher.group_changed(group)
        await self.settle()

    async def become(self, group: FakeGroup, availability: Availability) -> None:
        group.availability = availability
        self.dispatcher.groups_changed()
        await self.settle()

    async def failure(self, each: Ticket) -> RequestError:
        """Return what ends a request that was not placed."""
        with pytest.raises(RequestError) as raised:
            await asyncio.wait_for(self.tasks.pop(each), 10)
        return raised.value

    @property
    def waiting(self) -> float | None:
        return self.metrics.registry.get_sample_value("pixelpod_frontend_waiting", {"model": "tiny"})

    async def _hold(self, each: Ticket) -> None:
        with self.dispatcher.admitted(each):
            await self.dispatcher.place(each)
            self.placed.append(each)
            await asyncio.Event().wait()

    @staticmethod
    async def settle() -> None:
        """Let everything happen that can."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def close(self) -> None:
        await self.leave(*list(self.tasks))
        assert self.waiting in (0, None)


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
    with scene.dispatcher.admitted(each):
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


OPERATIONS = st.one_of(
    st.tuples(st.just("arrive"), st.sampled_from([LOW, NORMAL, HIGH]), st.integers(100, 105)),
    st.tuples(st.just("leave"), st.integers(0, 30), st.none()),
    st.tuples(st.just("tell"), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("die"), st.integers(0, 1), st.none()),
    st.tuples(st.just("live"), st.integers(0, 1), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATIONS, max_size=30))
def test_nothing_is_lost_placed_twice_or_placed_out_of_turn(operations: list[tuple[str, int, int]]) -> None:
    asyncio.run(_play(operations))


async def _play(operations: list[tuple[str, int, int]]) -> None:
    scene = Scene(FakeGroup("a"), FakeGroup("b"), queue_limit=100, no_group_seconds=1000)
    for name, first, second in operations:
        already, waiting = len(scene.placed), sorted(_unplaced(scene), key=lambda each: each.order)
        match name:
            case "arrive" if any(group.ready for group in scene.groups):
                await scene.arrive(ticket(second, first))
            case "leave" if scene.tasks:
                await scene.leave(list(scene.tasks)[first % len(scene.tasks)])
            case "tell":
                # Ready or not: the status of a group that is not must move nothing.
                for sent in list(scene.groups[first].load._sent):
                    sent.accepted = True
                await scene.tell(scene.groups[first], free_slots=second)
                new = scene.placed[already:]
                room = second if scene.groups[first].ready else 0
                assert new == waiting[:room], "as many as there is room for, the most urgent first"
            case "die":
                await scene.become(scene.groups[first], Availability.GONE)
            case "live":
                await scene.become(scene.groups[first], Availability.READY)
        assert len(set(scene.placed)) == len(scene.placed), "no place was given twice"
        assert all(group.load.room >= 0 for group in scene.groups), "no more than there was room for"
        assert (scene.waiting or 0) == len(_unplaced(scene))
    for group in scene.groups:
        await scene.become(group, Availability.READY)
        await scene.tell(group, free_slots=100)
    assert not _unplaced(scene), "with room for all, nobody waits"
    await scene.close()
    assert all(group.load.requests_ahead == 0 for group in scene.groups)


def _unplaced(scene: Scene) -> list[Ticket]:
    return [each for each in scene.tasks if each not in scene.placed]
