"""Repeated request ids over gRPC: no image is computed more often than needed, and the answer is the same."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import grpc
import pytest

from pixelpod.client import AsyncClient
from pixelpod.server.errors import AlreadyExists, ComputationFailed, InvalidRequest, from_call
from pixelpod.v1 import images_pb2
from tests.service.conftest import WAIT_SECONDS, Client, eventually
from tests.service.proxy import BreakingProxy
from tests.service.stub_group import CHUNK_BYTES

SIX_CHUNKS = os.urandom(6 * CHUNK_BYTES)
TO_THE_SECOND_CHUNK = CHUNK_BYTES + CHUNK_BYTES // 2
"""Bytes of a connection that breaks within the second chunk it carries."""


@pytest.fixture
async def start_proxy() -> AsyncIterator[Callable[..., Awaitable[BreakingProxy]]]:
    """Start a proxy before a frontend."""
    started: list[BreakingProxy] = []

    async def start(client: Client, budgets: Iterable[int] = ()) -> BreakingProxy:
        proxy = BreakingProxy(client.frontend.port, budgets)
        await proxy.start()
        started.append(proxy)
        return proxy

    yield start
    for proxy in started:
        await proxy.stop()


def image_bytes(events: list[images_pb2.GenerateEvent]) -> bytes:
    return b"".join(event.image_chunk.data for event in events)


def metric(client: Client, name: str, **labels: str) -> float | None:
    return client.frontend.metrics.registry.get_sample_value(f"pixelpod_frontend_{name}", labels)


async def read_until(call: grpc.aio.UnaryStreamCall, kind: str) -> images_pb2.GenerateEvent:
    while not (event := await call.read()).HasField(kind):
        pass
    return event


async def test_join_while_it_runs_and_repeat_after_the_end(start_group, start_frontend) -> None:
    group = await start_group()
    group.image = SIX_CHUNKS[: CHUNK_BYTES + 1]
    group.go_on.clear()
    client = await start_frontend(group)
    streams = [asyncio.create_task(client.events(request_id="r")) for _ in range(2)]
    unary = asyncio.create_task(client.generate(request_id="r"))
    await eventually(lambda: client.in_flight == 3)
    await asyncio.wait_for(group.stepped.wait(), WAIT_SECONDS)
    group.go_on.set()
    first, second = [await stream for stream in streams]
    answer = await unary
    third = await client.events(request_id="r")
    again = await client.generate(request_id="r")
    assert len(group.executed) == 1
    assert {image_bytes(events) for events in (first, second, third)} == {group.image}
    assert first[-1] == second[-1] == third[-1]
    assert answer == again
    assert answer.images[0].data == group.image
    answer.images[0].data = b""
    assert answer == first[-1].done
    await eventually(lambda: client.in_flight == 0)
    assert metric(client, "requests_total", model="tiny", code="OK") == 5
    assert metric(client, "repeated_requests_total", source="joined") == 2
    assert metric(client, "repeated_requests_total", source="kept") == 2
    assert metric(client, "queue_seconds_count", model="tiny") == 1


async def test_other_parameters(start_group, start_frontend) -> None:
    group = await start_group()
    client = await start_frontend(group)
    await client.generate(request_id="r", seed=1)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate(request_id="r", seed=2)
    assert raised.value.code() == grpc.StatusCode.ALREADY_EXISTS
    error = from_call(raised.value)
    assert isinstance(error, AlreadyExists)
    assert (error.reason, error.field) == ("REQUEST_ID_REUSED", "request_id")
    assert len(group.executed) == 1


async def test_settings_bound_what_is_kept(start_group, start_frontend) -> None:
    group = await start_group()
    timed, small = [
        await start_frontend(group, answer_kept_seconds=0.1),
        await start_frontend(group, answers_kept_bytes=100),
    ]
    await timed.generate(request_id="r")
    await eventually(lambda: metric(timed, "answers_kept_bytes") == 0)
    await timed.generate(request_id="r")
    assert len(group.executed) == 2
    for _ in range(2):
        await small.generate(request_id="r")
    assert metric(small, "answers_kept_bytes") == 0
    assert len(group.executed) == 4


async def test_failures_reach_all_and_are_forgotten(start_group, start_frontend) -> None:
    group = await start_group()
    group.go_on.clear()
    client = await start_frontend(group)
    calls = [asyncio.create_task(client.generate(request_id="r")) for _ in range(2)]
    await eventually(lambda: client.in_flight == 2)
    await asyncio.wait_for(group.stepped.wait(), WAIT_SECONDS)
    for connection in client.frontend.groups:
        connection.cut_requests("lost", "GROUP_LOST")
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert (from_call(result).reason, from_call(result).message) == ("GROUP_LOST", "lost")
    group.go_on.set()
    group.error = ComputationFailed("NaN", reason="NOT_FINITE")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate(request_id="r")
    assert from_call(raised.value).reason == "NOT_FINITE"
    group.error = None
    assert (await client.generate(request_id="r")).images[0].data == group.image
    assert len(group.executed) == 3


async def test_last_caller_leaves_while_it_computes(start_group, start_frontend) -> None:
    group = await start_group()
    group.go_on.clear()
    client = await start_frontend(group)
    calls = [client.images.GenerateStream(client.request(request_id="r")) for _ in range(2)]
    for call in calls:
        await read_until(call, "progress")
    calls[0].cancel()
    await eventually(lambda: client.in_flight == 1)
    assert not group.cancelled.is_set()
    calls[1].cancel()
    await asyncio.wait_for(group.cancelled.wait(), 1)
    await eventually(lambda: client.in_flight == 0)


async def test_caller_leaves_while_images_come_and_takes_them_up(start_group, start_frontend) -> None:
    group = await start_group()
    group.image = SIX_CHUNKS
    group.images_go_on.clear()
    client = await start_frontend(group)
    call = client.images.GenerateStream(client.request(request_id="r", seed=3))
    accepted = (await call.read()).accepted
    await read_until(call, "image_chunk")
    call.cancel()
    await eventually(lambda: client.in_flight == 0)
    assert not group.cancelled.is_set()
    group.images_go_on.set()
    point = images_pb2.ResumePoint(answer_id=accepted.answer_id, index=0, offset=CHUNK_BYTES)
    events = await client.events(request_id="r", seed=3, resume_from=point)
    assert events[0].accepted.answer_id == accepted.answer_id
    chunks = [event.image_chunk for event in events if event.HasField("image_chunk")]
    assert [chunk.offset for chunk in chunks] == [number * CHUNK_BYTES for number in (1, 2, 3, 4, 5)]
    assert image_bytes(events) == SIX_CHUNKS[CHUNK_BYTES:]
    assert len(group.executed) == 1


async def test_unary_calls_take_up_nothing(start_group, start_frontend) -> None:
    group = await start_group()
    client = await start_frontend(group)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate(request_id="r", resume_from=images_pb2.ResumePoint(answer_id="a"))
    error = from_call(raised.value)
    assert isinstance(error, InvalidRequest)
    assert error.field == "resume_from"
    assert not group.executed


async def test_client_takes_a_stream_up_that_breaks_five_times(start_group, start_frontend, start_proxy) -> None:
    group = await start_group()
    group.image = SIX_CHUNKS
    frontend = await start_frontend(group)
    proxy = await start_proxy(frontend, [TO_THE_SECOND_CHUNK] * 5)
    async with AsyncClient(proxy.address) as client:
        result = await client.generate("a red house", deadline_seconds=60)
    assert [image.data for image in result.images] == [SIX_CHUNKS]
    assert proxy.connections == 6
    assert len(group.executed) == 1
    await eventually(lambda: frontend.in_flight == 0)


async def test_caller_that_retries_five_times_with_the_same_id(start_group, start_frontend, start_proxy) -> None:
    """A caller that knows nothing of resume_from: the whole answer comes again, and it is the same."""
    group = await start_group()
    group.image = SIX_CHUNKS
    frontend = await start_frontend(group)
    proxy = await start_proxy(frontend, [TO_THE_SECOND_CHUNK] * 5)

    async def attempt() -> list[images_pb2.GenerateEvent] | grpc.StatusCode:
        async with grpc.aio.insecure_channel(proxy.address) as channel:
            try:
                return await Client(channel).events(request_id="r")
            except grpc.aio.AioRpcError as error:
                return error.code()

    *broken, events = [await attempt() for _ in range(6)]
    assert broken == [grpc.StatusCode.UNAVAILABLE] * 5
    assert image_bytes(events) == SIX_CHUNKS
    assert events[-1].done.parameters.seeds == group.executed[0].parameters.seeds
    assert len(group.executed) == 1


async def test_connection_that_breaks_while_it_computes_costs_one_computation(
    start_group, start_frontend, start_proxy
) -> None:
    group = await start_group()
    group.go_on.clear()
    proxy = await start_proxy(await start_frontend(group))
    async with AsyncClient(proxy.address) as client:
        generation = asyncio.create_task(client.generate("a red house", deadline_seconds=60))
        for number in range(1, 6):
            await eventually(lambda number=number: len(group.executed) == number)
            await asyncio.wait_for(group.stepped.wait(), WAIT_SECONDS)
            group.stepped.clear()
            proxy.cut()
            await asyncio.wait_for(group.cancelled.wait(), WAIT_SECONDS)
            group.cancelled.clear()
        group.go_on.set()
        assert (await generation).images[0].data == group.image
    assert len(group.executed) == 6


async def test_frontend_that_is_gone_is_replaced_by_another(start_group, start_frontend, start_proxy) -> None:
    """The other one has no answer to go on with, and draws another seed: nothing of the first answer remains."""
    groups = [await start_group(), await start_group()]
    frontends = [await start_frontend(group) for group in groups]
    groups[0].image, groups[1].image = SIX_CHUNKS, bytes(reversed(SIX_CHUNKS))
    groups[0].images_go_on.clear()
    proxy = await start_proxy(frontends[0])
    async with AsyncClient(proxy.address) as client:
        generation = asyncio.create_task(client.generate("a red house", num_images=2, deadline_seconds=60))
        await eventually(lambda: metric(frontends[0], "in_flight") == 1)
        await asyncio.wait_for(groups[0].stepped.wait(), WAIT_SECONDS)
        proxy.port = frontends[1].frontend.port
        await frontends[0].frontend.stop()
        result = await generation
    assert [image.data for image in result.images] == [groups[1].image] * 2
    assert result.parameters.seeds == tuple(groups[1].executed[0].parameters.seeds)
    assert result.parameters.seeds != tuple(groups[0].executed[0].parameters.seeds)
    assert [len(group.executed) for group in groups] == [1, 1]


async def test_computation_without_callers_does_not_keep_the_frontend(start_group, start_frontend) -> None:
    group = await start_group()
    group.image = SIX_CHUNKS
    group.images_go_on.clear()
    client = await start_frontend(group, drain_seconds=WAIT_SECONDS)
    call = client.images.GenerateStream(client.request(request_id="r"))
    await read_until(call, "image_chunk")
    call.cancel()
    await eventually(lambda: client.in_flight == 0)
    assert not group.cancelled.is_set()
    await asyncio.wait_for(client.frontend.stop(), 3)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "computation"]
    await asyncio.wait_for(group.cancelled.wait(), WAIT_SECONDS)
    assert client.in_flight == 0
    assert metric(client, "answers_kept_bytes") == 0
