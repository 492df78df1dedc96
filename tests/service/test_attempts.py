"""Requests outlive a group, once; and the one that breaks groups is found."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest

from pixelpod.server.errors import Overloaded, RequestError, Unavailable, from_call, status_code_of
from pixelpod.v1 import group_pb2, images_pb2
from tests.service.conftest import WAIT_SECONDS, Client, eventually
from tests.service.stub_group import CHUNK_BYTES, StubGroup

IMAGE = bytes(range(256)) * (3 * CHUNK_BYTES // 256)


class BreakingGroup(StubGroup):
    """Breaks with whatever it computes, at a moment that the test sets."""

    after_chunks: int | None = None
    """How many image chunks it sends before it breaks; None for the first step."""
    breaks = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.known = asyncio.Event()
        self.known.set()
        """Cleared: it breaks once this is set."""

    async def ExecuteStream(  # noqa: N802 -- gRPC's name
        self, request: group_pb2.ExecuteRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[group_pb2.ExecuteEvents]:
        chunks = 0
        async for event in super().ExecuteStream(request, context):
            lost = Unavailable("a rank failed", reason="WORLD_BROKEN")
            if self.breaks and event.HasField("progress") and self.after_chunks is None:
                await self.known.wait()
                raise lost
            if self.breaks and event.image_chunk:
                if chunks == self.after_chunks:
                    raise lost
                chunks += 1
            yield event


@pytest.fixture
async def start_breaking() -> AsyncIterator[object]:
    started: list[StubGroup] = []

    async def start(name: str, after_chunks: int | None = None) -> BreakingGroup:
        group = BreakingGroup(name)
        group.after_chunks = after_chunks
        await group.start()
        started.append(group)
        return group

    yield start
    for group in started:
        await group.stop()


Ask = Callable[..., Awaitable[images_pb2.GenerateResponse]]


async def whole(client: Client, **fields: object) -> images_pb2.GenerateResponse:
    return await client.generate(**fields)


async def streamed(client: Client, **fields: object) -> images_pb2.GenerateResponse:
    return (await client.events(**fields))[-1].done


both = pytest.mark.parametrize("ask", [whole, streamed])


async def failure(client: Client, ask: Ask = streamed, **fields: object) -> RequestError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(client, **fields)
    return from_call(raised.value)


async def all_ready(client: Client) -> None:
    assert client.frontend is not None
    await eventually(lambda: all(group.ready for group in client.frontend.groups))


async def break_once_known(client: Client, group: BreakingGroup) -> None:
    """Have the group break when the frontend knows that it computes."""
    assert client.frontend is not None
    (known,) = [known for known in client.frontend.groups if known.address == group.address]
    await eventually(lambda: len(known.load.status.computing) == 1)
    group.known.set()


def sent_again(client: Client, reason: str) -> float | None:
    assert client.frontend is not None
    labels = {"model": "tiny", "reason": reason}
    return client.frontend.metrics.registry.get_sample_value("pixelpod_frontend_sent_again_total", labels)


@both
async def test_another_group_computes_the_same_image(start_breaking, start_group, start_frontend, ask: Ask) -> None:
    broken, healthy = await start_breaking("broken"), await start_group("healthy")
    await healthy.publish(backlog_seconds=5.0)  # the other one comes first
    broken.known.clear()
    client = await start_frontend(broken, healthy)
    await all_ready(client)
    call = asyncio.create_task(ask(client, num_images=2))
    await break_once_known(client, broken)
    done = await call
    assert done.group == "healthy"
    (first,), (second,) = broken.executed, healthy.executed
    assert second.parameters.seeds == first.parameters.seeds == done.parameters.seeds
    assert not first.alone
    assert second.alone, "whatever broke the first group harms no other request in the second"
    assert sent_again(client, "lost") == 1
    await eventually(lambda: client.in_flight == 0)


async def test_a_killed_process_costs_its_callers_nothing(held_group, start_group, start_frontend) -> None:
    process, address = held_group
    healthy = await start_group("healthy")
    await healthy.publish(backlog_seconds=5.0)
    client = await start_frontend(address, healthy)
    await all_ready(client)
    call = client.images.GenerateStream(client.request())
    assert (await call.read()).HasField("accepted")
    assert (await call.read()).HasField("progress")
    process.send_signal(signal.SIGKILL)
    events = []
    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
    assert events[-1].done.group == "healthy"
    assert not any(event.HasField("accepted") for event in events)


async def test_a_killed_process_costs_whole_answers_nothing(held_group, start_group, start_frontend) -> None:
    process, address = held_group
    healthy = await start_group("healthy")
    await healthy.publish(backlog_seconds=5.0)
    client = await start_frontend(address, healthy)
    await all_ready(client)
    call = asyncio.create_task(client.generate())
    await eventually(lambda: any(group.load.status.computing for group in client.frontend.groups))
    process.send_signal(signal.SIGKILL)
    answer = await call
    assert (answer.group, answer.images[0].data) == ("healthy", healthy.image)
    assert healthy.executed[0].alone


@pytest.mark.parametrize("after_chunks", [0, 1, 2])
async def test_a_group_lost_between_chunks_costs_no_byte(
    start_breaking, start_group, start_frontend, after_chunks: int
) -> None:
    broken, healthy = await start_breaking("broken", after_chunks), await start_group("healthy")
    await healthy.publish(backlog_seconds=5.0)
    broken.image = healthy.image = IMAGE
    client = await start_frontend(broken, healthy)
    await all_ready(client)
    events = await client.events()
    chunks = [event.image_chunk for event in events if event.HasField("image_chunk")]
    assert [chunk.offset for chunk in chunks] == [0, CHUNK_BYTES, 2 * CHUNK_BYTES]
    assert b"".join(chunk.data for chunk in chunks) == IMAGE
    assert len(broken.executed) == len(healthy.executed) == 1


async def test_images_of_two_groups_are_never_mixed(start_breaking, start_group, start_frontend) -> None:
    broken, other = await start_breaking("broken", 1), await start_group("other")
    await other.publish(backlog_seconds=5.0)
    broken.image, other.image = IMAGE, IMAGE[::-1]
    client = await start_frontend(broken, other)
    await all_ready(client)
    error = await failure(client)
    assert isinstance(error, Unavailable)
    assert error.reason == "GROUP_CHANGED"


@both
async def test_the_second_death_names_the_likely_cause(start_breaking, start_group, start_frontend, ask: Ask) -> None:
    groups = [await start_breaking(name) for name in ("a", "b")]
    spared = await start_group("c")
    await spared.publish(backlog_seconds=100.0)
    for group in groups:
        group.known.clear()
    client = await start_frontend(*groups, spared)
    await all_ready(client)
    call = asyncio.create_task(failure(client, ask, deadline_seconds=500))
    await asyncio.gather(*(break_once_known(client, group) for group in groups))
    error = await call
    assert status_code_of(error) is grpc.StatusCode.FAILED_PRECONDITION
    assert error.reason == "POISON_REQUEST"
    assert [len(group.executed) for group in (*groups, spared)] == [1, 1, 0]
    await eventually(lambda: client.in_flight == 0)


@both
async def test_a_request_that_did_not_compute_is_no_cause(start_group, start_frontend, ask: Ask) -> None:
    groups = [await start_group(name) for name in ("a", "b")]
    for group in groups:
        group.error = Unavailable("a rank failed", reason="WORLD_BROKEN", retry_after_seconds=1.0)
    client = await start_frontend(*groups)
    await all_ready(client)
    error = await failure(client, ask)
    assert isinstance(error, Unavailable)
    assert error.reason == "WORLD_BROKEN"
    assert [execution.alone for group in groups for execution in group.executed] == [False, False]


@pytest.mark.parametrize("reason", ["QUEUE_FULL", "GROUP_DRAINING", "GROUP_NOT_READY", "BUCKET_NOT_WARM"])
async def test_a_group_that_refuses_is_passed_over(start_group, start_frontend, reason: str) -> None:
    refusing, other = await start_group("refusing"), await start_group("other")
    kind = Overloaded if reason == "QUEUE_FULL" else Unavailable
    refusing.error = kind("not now", reason=reason, retry_after_seconds=1.0)
    await other.publish(backlog_seconds=5.0)
    client = await start_frontend(refusing, other)
    await all_ready(client)
    assert (await client.events())[-1].done.group == "other"
    assert sent_again(client, "refused") == 1


@both
async def test_a_group_that_just_stopped_is_passed_over(start_group, start_frontend, ask: Ask) -> None:
    stopping, other = await start_group("stopping"), await start_group("other")
    stopping.stopping = True
    await other.publish(backlog_seconds=5.0)
    client = await start_frontend(stopping, other)
    await all_ready(client)
    assert (await ask(client)).group == "other"
    assert sent_again(client, "lost") == 1


async def test_a_refused_request_waits_for_the_groups_next_status(start_group, start_frontend) -> None:
    group = await start_group()
    group.error = Overloaded("full", reason="QUEUE_FULL")
    client = await start_frontend(group)
    call = asyncio.create_task(client.events())
    await eventually(lambda: len(group.executed) >= 2)
    group.error = None
    assert (await call)[-1].done.group == "stub"
    assert len(group.executed) <= 2 + WAIT_SECONDS / 0.2, "one try a status"


async def test_a_lone_group_that_breaks_is_told_soon(start_breaking, start_frontend) -> None:
    client = await start_frontend(await start_breaking("a"), no_group_seconds=0.2)
    error = await failure(client)
    assert isinstance(error, Unavailable)
    assert error.reason == "WORLD_BROKEN"


async def test_a_lone_group_that_starts_again_at_once_computes_it(start_breaking, start_frontend) -> None:
    group = await start_breaking("a")
    client = await start_frontend(group)
    call = asyncio.create_task(client.events())
    await eventually(lambda: len(group.executed) == 1)
    group.breaks = False
    await group.publish(epoch=group.status.epoch + 1)
    assert (await call)[-1].done.epoch == group.status.epoch
