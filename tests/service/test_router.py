"""Requests go where they are predicted to finish first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from pixelpod.server.errors import Unavailable
from pixelpod.v1 import group_pb2, images_pb2
from service.group_connection import GroupConnection
from service.router import choose_group, predicted_seconds, ready_groups
from tests.service.conftest import eventually
from tests.service.stub_group import StubGroup, tiny_model
from tests.service.test_group_connection import connected

PARAMETERS = images_pb2.ResolvedParameters(width=64, height=64, num_images=1, steps=4)


@pytest.fixture
async def connect(start_group) -> AsyncIterator[Callable[..., object]]:
    """Start a stub group with the given status, and connect to it."""
    async with AsyncExitStack() as stack:

        async def start(model: images_pb2.Model | None = None, **status: object) -> GroupConnection:
            group: StubGroup = await start_group(model=model)
            await group.publish(**status)
            return await stack.enter_async_context(connected(group.address))

        yield start


def measured(seconds: float, step_seconds: float) -> images_pb2.Model:
    model = tiny_model()
    for bucket in model.buckets:
        bucket.measured_seconds, bucket.step_seconds = seconds, step_seconds
    return model


async def test_least_backlog(connect) -> None:
    groups = [await connect(backlog_seconds=seconds) for seconds in (3.0, 1.0, 2.0)]
    assert {choose_group(groups, PARAMETERS) for _ in range(20)} == {groups[1]}


async def test_least_finish_counts_the_group_speed(connect) -> None:
    slow_and_free = await connect(measured(10.0, 2.0), backlog_seconds=0)
    fast_and_busy = await connect(measured(1.0, 0.2), backlog_seconds=5.0)
    assert choose_group([slow_and_free, fast_and_busy], PARAMETERS) is fast_and_busy


async def test_what_was_sent_since_the_last_status_counts(connect) -> None:
    groups = [await connect(measured(1.0, 0.2)) for _ in range(2)]
    first = choose_group(groups, PARAMETERS)
    with first.expecting(predicted_seconds(first, PARAMETERS)):
        second = choose_group(groups, PARAMETERS)
        assert second is not first


async def test_unmeasured_groups_are_told_apart_by_requests(connect) -> None:
    groups = [await connect(in_flight=2), await connect(in_flight=1)]
    assert choose_group(groups, PARAMETERS) is groups[1]


async def test_ties_are_broken_at_random(connect) -> None:
    groups = [await connect() for _ in range(2)]
    assert {choose_group(groups, PARAMETERS) for _ in range(64)} == set(groups)


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
    assert choose_group(ready, PARAMETERS) is groups[-1]
    with pytest.raises(Unavailable, match="is warm for 64x64") as refused:
        choose_group(ready[:1], PARAMETERS)
    assert refused.value.reason == "BUCKET_NOT_WARM"
    with pytest.raises(Unavailable, match="its groups are: draining, warming") as refused:
        ready_groups(groups[2:4], "tiny")
    assert (refused.value.reason, refused.value.retry_after_seconds) == ("GROUPS_NOT_READY", 5)


@pytest.mark.parametrize(("steps", "num_images", "seconds"), [(4, 1, 2.0), (14, 1, 5.0), (1, 1, 1.1), (4, 3, 6.0)])
async def test_prediction(connect, steps: int, num_images: int, seconds: float) -> None:
    group = await connect(measured(2.0, 0.3))
    parameters = images_pb2.ResolvedParameters(width=64, height=64, num_images=num_images, steps=steps)
    assert predicted_seconds(group, parameters) == pytest.approx(seconds)


async def test_concurrent_requests_spread(start_group, start_frontend) -> None:
    groups = [await start_group(f"g{number}", measured(1.0, 0.2)) for number in range(2)]
    client = await start_frontend(*groups)

    async def both_ready() -> bool:
        return (await client.images.ListModels(images_pb2.ListModelsRequest())).models[0].ready_groups == 2

    await eventually(both_ready)
    for group in groups:
        group.go_on.clear()
    tasks = [asyncio.create_task(client.generate()) for _ in range(8)]
    await eventually(lambda: sum(len(group.executed) for group in groups) == 8)
    counts = [len(group.executed) for group in groups]
    for group in groups:
        group.go_on.set()
    await asyncio.gather(*tasks)
    assert min(counts) >= 2
