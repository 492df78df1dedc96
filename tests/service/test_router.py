"""Requests go where they are predicted to finish first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from pixelpod.server.errors import Unavailable
from pixelpod.v1 import group_pb2, images_pb2
from service.admission import Ticket
from service.group_connection import GroupConnection
from service.router import ENOUGH, choose_group, ready_groups, warm_groups
from tests.service.conftest import eventually
from tests.service.connections import connected
from tests.service.fake_groups import FakeGroup
from tests.service.stub_group import StubGroup, measured, tiny_model

PARAMETERS = images_pb2.ResolvedParameters(width=64, height=64, num_images=1, steps=4)


def ticket(revision: str | None = None) -> Ticket:
    return Ticket(PARAMETERS, time.monotonic() + 60, "tiny", revision)


@pytest.fixture
async def connect(start_group) -> AsyncIterator[Callable[..., object]]:
    """Start a stub group with the given status, and connect to it."""
    async with AsyncExitStack() as stack:

        async def start(model: images_pb2.Model | None = None, **status: object) -> GroupConnection:
            group: StubGroup = await start_group(model=model)
            await group.publish(**status)
            return await stack.enter_async_context(connected(group.address))

        yield start


async def test_least_backlog(connect) -> None:
    groups = [await connect(backlog_seconds=seconds) for seconds in (30.0, 10.0, 20.0)]
    assert {choose_group(groups, ticket()) for _ in range(20)} == {groups[1]}


async def test_least_finish_counts_the_group_speed(connect) -> None:
    slow_and_free = await connect(batch_seconds=measured(2.0, 2.0), backlog_seconds=0)
    fast_and_busy = await connect(batch_seconds=measured(0.2, 0.2), backlog_seconds=5.0)
    assert choose_group([slow_and_free, fast_and_busy], ticket()) is fast_and_busy


async def test_what_was_sent_since_the_last_status_counts(connect) -> None:
    groups = [await connect(batch_seconds=measured(1.0, 0.2)) for _ in range(2)]
    first = choose_group(groups, ticket())
    first.load.send(ticket())
    assert choose_group(groups, ticket()) not in (first, None)


async def test_unmeasured_groups_are_told_apart_by_requests(connect) -> None:
    groups = [await connect(in_flight=2), await connect(in_flight=1)]
    assert choose_group(groups, ticket()) is groups[1]


async def test_ties_are_broken_at_random(connect) -> None:
    groups = [await connect() for _ in range(2)]
    assert {choose_group(groups, ticket()) for _ in range(64)} == set(groups)


async def test_finishes_that_differ_by_a_hair_are_ties(connect) -> None:
    groups = [await connect(backlog_seconds=seconds) for seconds in (100.0, 105.0, 120.0)]
    assert {choose_group(groups, ticket()) for _ in range(64)} == set(groups[:2])


async def test_of_ties_those_with_the_fewest_requests(connect) -> None:
    groups = [await connect(backlog_seconds=100.0, in_flight=2), await connect(backlog_seconds=105.0, in_flight=1)]
    assert choose_group(groups, ticket()) is groups[1]


async def test_a_batch_that_waits_with_places_left_is_as_good_as_done(connect) -> None:
    mates = group_pb2.WaitingImages(width=64, height=64, steps=4, images=3)
    groups = [
        await connect(batch_seconds=measured(2.0, 0.5), backlog_seconds=1.0),
        await connect(batch_seconds=measured(2.0, 0.5), backlog_seconds=4.0, waiting_images=[mates]),
    ]
    assert choose_group(groups, ticket()) is groups[1]
    groups[1].load.send(ticket())
    assert choose_group(groups, ticket()) is groups[0], "that batch is full"


def test_of_many_groups_some_are_enough() -> None:
    groups = [FakeGroup(str(number), free_slots=1, backlog_seconds=1.5**number) for number in range(3 * ENOUGH)]
    chosen = {choose_group(groups, ticket()) for _ in range(400)}
    assert groups[0] in chosen
    assert ENOUGH < len(chosen) <= 3 * ENOUGH - ENOUGH + 1, "each is the best of those from anywhere on"


def test_the_only_group_of_many_is_found() -> None:
    groups = [FakeGroup(str(number)) for number in range(3 * ENOUGH)]
    groups[ENOUGH].tell(free_slots=1)
    assert {choose_group(groups, ticket()) for _ in range(20)} == {groups[ENOUGH]}


async def test_only_groups_with_room_that_did_not_refuse(connect) -> None:
    full, refusing, free = await connect(free_slots=0), await connect(), await connect(backlog_seconds=100.0)
    refusing.load.refuse()
    assert choose_group([full, refusing, free], ticket()) is free
    assert choose_group([full, refusing], ticket()) is None
    await eventually(lambda: choose_group([full, refusing], ticket()) is refusing)  # its next status


async def test_not_where_it_was_lost_but_where_that_started_again(connect) -> None:
    group = await connect()
    unlucky = ticket()
    unlucky.shunned.add((group.address, group.epoch))
    assert choose_group([group], unlucky) is None
    group.load.status.epoch += 1
    assert choose_group([group], unlucky) is group


async def test_only_the_revision_asked_for(connect) -> None:
    other = tiny_model()
    other.revision = "r2"
    groups = [await connect(), await connect(other, backlog_seconds=100.0)]
    assert choose_group(groups, ticket("r2")) is groups[1]
    assert choose_group(groups, ticket()) is groups[0]


async def test_only_ready_groups_of_the_model_that_are_warm(connect) -> None:
    cold = tiny_model()
    cold.buckets[0].warm = False
    groups = [
        await connect(tiny_model("other")),
        await connect(cold),
        await connect(state=group_pb2.GROUP_STATE_WARMING),
        await connect(state=group_pb2.GROUP_STATE_DRAINING),
        await connect(backlog_seconds=100.0),
    ]
    ready = ready_groups(groups, "tiny")
    assert ready == [groups[1], groups[-1]]
    assert warm_groups(ready, PARAMETERS) == [groups[-1]]
    assert choose_group(groups, ticket()) is groups[-1]
    with pytest.raises(Unavailable, match="is warm for 64x64") as refused:
        warm_groups(ready[:1], PARAMETERS)
    assert refused.value.reason == "BUCKET_NOT_WARM"
    with pytest.raises(Unavailable, match="its groups are: draining, warming") as refused:
        ready_groups(groups[2:4], "tiny")
    assert (refused.value.reason, refused.value.retry_after_seconds) == ("GROUPS_NOT_READY", 5)


async def test_a_group_that_was_ready_before_is_expected_back(connect) -> None:
    group = await connect(state=group_pb2.GROUP_STATE_WARMING)
    now = 100.0
    group.absence = type(group.absence)(clock=lambda: now)
    group.absence.note(ready=False)
    now = 140.0
    group.absence.note(ready=True)
    group.absence.note(ready=False)
    now = 150.0
    with pytest.raises(Unavailable) as refused:
        ready_groups([group], "tiny")
    assert refused.value.retry_after_seconds == pytest.approx(30)


async def test_concurrent_requests_spread(start_group, start_frontend) -> None:
    groups = [await start_group(f"g{number}") for number in range(2)]
    client = await start_frontend(*groups)

    async def both_ready() -> bool:
        return (await client.images.ListModels(images_pb2.ListModelsRequest())).models[0].ready_groups == 2

    await eventually(both_ready)
    for group in groups:
        await group.publish(batch_seconds=measured(0.2, 0.2, 1, 4))
        group.go_on.clear()
    tasks = [asyncio.create_task(client.generate()) for _ in range(8)]
    await eventually(lambda: sum(len(group.executed) for group in groups) == 8)
    counts = [len(group.executed) for group in groups]
    for group in groups:
        group.go_on.set()
    await asyncio.gather(*tasks)
    assert min(counts) >= 2
