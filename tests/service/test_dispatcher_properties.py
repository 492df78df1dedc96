"""Whatever requests and groups do, no place is lost, given twice, or given out of turn."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from service.availability import Availability
from tests.service.fake_groups import FakeGroup
from tests.service.scene import HIGH, LOW, NORMAL, Scene, ticket

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
        already, waiting = len(scene.placed), sorted(scene.unplaced, key=lambda each: each.order)
        match name:
            case "arrive" if any(group.ready for group in scene.groups):
                await scene.arrive(ticket(second, first))
            case "leave" if scene.tasks:
                await scene.leave(list(scene.tasks)[first % len(scene.tasks)])
            case "tell":
                # Ready or not: the status of a group that is not must move nothing.
                arrived = [sent.request_id for sent in scene.groups[first].load._sent]
                await scene.tell(scene.groups[first], free_slots=second, computing=arrived)
                new = scene.placed[already:]
                room = second if scene.groups[first].ready else 0
                assert new == waiting[:room], "as many as there is room for, the most urgent first"
            case "die":
                await scene.become(scene.groups[first], Availability.GONE)
            case "live":
                await scene.become(scene.groups[first], Availability.READY)
        assert len(set(scene.placed)) == len(scene.placed), "no place was given twice"
        assert all(group.load.room >= 0 for group in scene.groups), "no more than there was room for"
        assert (scene.waiting or 0) == len(scene.unplaced)
    for group in scene.groups:
        await scene.become(group, Availability.READY)
        await scene.tell(group, free_slots=100)
    assert not scene.unplaced, "with room for all, nobody waits"
    await scene.close()
    assert all(group.load.requests_ahead == 0 for group in scene.groups)
