"""A request from its arrival to its closing event: what is relayed, what is added, and how it ends."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time

import grpc
import pytest

from pixelpod.server.errors import DeadlinePassed, RequestError, Unavailable, from_call
from pixelpod.v1 import group_pb2, images_pb2
from tests.service.conftest import PROMPT, WAIT_SECONDS, Client, eventually
from tests.service.stub_group import measured, tiny_model

NOISE = os.urandom(3 * 1024 * 1024)


async def failure(client: Client, deadline_seconds: float = WAIT_SECONDS, **fields: object) -> RequestError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.events(deadline_seconds, **fields)
    return from_call(raised.value)


async def test_events_in_order(start_group, start_frontend) -> None:
    client = await start_frontend(await start_group())
    events = await client.events(request_id="mine", num_images=2)
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["accepted"] + ["progress"] * 4 + ["image_chunk"] * 2 + ["done"]
    assert events[0].accepted.request_id == "mine"
    assert [(event.progress.step, event.progress.steps) for event in events[1:5]] == [(n, 4) for n in (1, 2, 3, 4)]


async def test_accepted_tells_position_and_prediction(start_group, start_frontend) -> None:
    group = await start_group()
    group.status.batch_seconds.extend(measured(1.0, 0.25, 4))
    group.status.backlog_seconds, group.status.in_flight = 6.0, 3
    client = await start_frontend(group)
    accepted = (await client.events())[0].accepted
    # The backlog is less by the time since it was published. The request itself does not count.
    assert accepted.position == 3
    assert accepted.predicted_seconds == pytest.approx(8.0, abs=0.5)


async def ending(client: Client, method: str, **fields: object) -> images_pb2.GenerateResponse:
    """Return what `method` tells in the end, without image data."""
    if method == "GenerateStream":
        return (await client.events(**fields))[-1].done
    answer = await client.generate(**fields)
    assert all(image.data for image in answer.images)
    for image in answer.images:
        image.ClearField("data")
    return answer


@pytest.mark.parametrize("method", ["Generate", "GenerateStream"])
async def test_the_ending_tells_everything(start_group, start_frontend, method: str) -> None:
    group = await start_group()
    group.warnings = [images_pb2.Warning(code=images_pb2.WARNING_CODE_PROMPT_TRUNCATED, field="prompt", message="cut")]
    client = await start_frontend(group)
    began = time.monotonic()
    done = await ending(client, method, negative_prompt="blur", guidance_scale=1.0, num_images=2, seed=0)
    elapsed = time.monotonic() - began
    assert len(done.request_id) == 32
    assert (done.model, done.revision, done.group, done.epoch) == ("tiny", "r1", "stub", group.status.epoch)
    assert [(image.index, image.seed, image.data) for image in done.images] == [(0, 0, b""), (1, 1, b"")]
    assert [warning.code for warning in done.warnings] == [
        images_pb2.WARNING_CODE_NEGATIVE_PROMPT_IGNORED,
        images_pb2.WARNING_CODE_PROMPT_TRUNCATED,
    ]
    assert done.parameters == images_pb2.ResolvedParameters(
        width=64,
        height=64,
        num_images=2,
        steps=4,
        guidance_scale=1.0,
        max_sequence_length=64,
        seeds=[0, 1],
        output_format=images_pb2.OUTPUT_FORMAT_PNG,
        size_policy=images_pb2.SIZE_POLICY_EXACT,
        priority=images_pb2.PRIORITY_NORMAL,
        negative_prompt="blur",
    )
    assert 0.5 <= done.timings.queue_seconds < 0.5 + elapsed  # the group reported 0.5
    assert done.timings.denoise_seconds == 0.25
    assert 0 < done.timings.total_seconds <= elapsed
    assert client.frontend is not None
    registry = client.frontend.metrics.registry
    await eventually(lambda: client.in_flight == 0)
    waited = registry.get_sample_value("pixelpod_frontend_queue_seconds_sum", {"model": "tiny"})
    assert waited == done.timings.queue_seconds


async def test_group_gets_the_resolved_request(start_group, start_frontend) -> None:
    group = await start_group()
    client = await start_frontend(group)
    done = (await client.events(priority=images_pb2.PRIORITY_HIGH))[-1].done
    (executed,) = group.executed
    assert 0 < executed.timings.queue_seconds == executed.timings.total_seconds < 5
    executed.ClearField("timings")
    expected = {"request_id": done.request_id, "model": "tiny", "prompt": PROMPT, "parameters": done.parameters}
    assert executed == group_pb2.ExecuteRequest(**expected)
    assert done.parameters.priority == images_pb2.PRIORITY_HIGH


async def test_twelve_mebibytes_on_a_default_channel(start_group, start_frontend) -> None:
    group = await start_group()
    group.image = NOISE
    client = await start_frontend(group)
    images: dict[int, bytes] = {}
    for event in await client.events(num_images=4):
        if event.HasField("image_chunk"):
            chunk = event.image_chunk
            assert chunk.offset == len(images.get(chunk.index, b""))
            assert len(chunk.data) < 1024 * 1024
            images[chunk.index] = images.get(chunk.index, b"") + chunk.data
    assert sum(map(len, images.values())) == 12 * 1024 * 1024
    assert {hashlib.sha256(data).digest() for data in images.values()} == {hashlib.sha256(NOISE).digest()}


async def test_loading_group_takes_nothing_whatever_is_asked(start_group, start_frontend) -> None:
    """A loading group does not know yet whether its model takes a negative prompt."""
    group = await start_group(model=tiny_model(negative_prompt=False))
    group.status.state = group_pb2.GROUP_STATE_LOADING
    client = await start_frontend(group, ready=False)
    await eventually(lambda: client.frontend.groups.models != {})
    error = await failure(client, negative_prompt="blur")
    assert isinstance(error, Unavailable)
    assert (error.reason, error.retry_after_seconds) == ("GROUPS_NOT_READY", 5)
    assert "its groups are: loading" in error.message
    assert not group.executed


async def test_cancel_reaches_the_group(start_group, start_frontend) -> None:
    group = await start_group()
    group.go_on.clear()
    client = await start_frontend(group)
    call = client.images.GenerateStream(client.request())
    await asyncio.wait_for(group.stepped.wait(), WAIT_SECONDS)
    call.cancel()
    await asyncio.wait_for(group.cancelled.wait(), 1)
    await eventually(lambda: client.in_flight == 0)


async def test_a_caller_that_stops_reading_does_not_hold_up_the_group(start_group, start_frontend) -> None:
    group = await start_group()
    group.image = NOISE * 8
    client = await start_frontend(group)
    call = client.images.GenerateStream(client.request())
    while not (await call.read()).HasField("image_chunk"):
        pass
    await eventually(lambda: group.running == 0)
    assert not group.cancelled.is_set()
    assert client.in_flight == 1
    call.cancel()
    await eventually(lambda: client.in_flight == 0)


async def test_deadline_of_the_caller_reaches_the_group(start_group, start_frontend) -> None:
    group = await start_group()
    group.go_on.clear()
    client = await start_frontend(group)
    began = time.monotonic()
    assert isinstance(await failure(client, deadline_seconds=0.4), DeadlinePassed)
    assert time.monotonic() - began < 1
    await asyncio.wait_for(group.cancelled.wait(), 1)
    assert group.timeouts == [pytest.approx(0.4, abs=0.1)]


async def test_cap_applies_without_a_deadline(start_group, start_frontend) -> None:
    group = await start_group()
    group.go_on.clear()
    client = await start_frontend(group, max_request_seconds=0.5)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate(deadline_seconds=None)
    error = from_call(raised.value)
    assert isinstance(error, DeadlinePassed)
    assert "ran out after 0.5 s" in error.message
    assert group.timeouts == [pytest.approx(0.5, abs=0.1)]


async def test_cap_applies_to_longer_deadlines(start_group, start_frontend) -> None:
    group = await start_group()
    client = await start_frontend(group, max_request_seconds=5)
    await client.generate(deadline_seconds=3600)
    assert group.timeouts == [pytest.approx(5, abs=0.5)]


async def test_a_millisecond_is_never_dispatched(start_group, start_frontend) -> None:
    group = await start_group()
    client = await start_frontend(group)
    for _ in range(20):
        assert isinstance(await failure(client, deadline_seconds=0.001), DeadlinePassed)
    await client.generate()
    assert len(group.executed) == 1


async def test_log_has_one_line_without_the_prompt(start_group, start_frontend, caplog) -> None:
    client = await start_frontend(await start_group())
    with caplog.at_level(logging.DEBUG):
        await client.events(request_id="log-1")
        await failure(client, request_id="log-2", steps=0)
        await eventually(lambda: client.in_flight == 0)
    lines = [record for record in caplog.records if record.message == "request ended"]
    assert [(line.request_id, line.model, line.code) for line in lines] == [
        ("log-1", "tiny", "OK"),
        ("log-2", "tiny", "INVALID_ARGUMENT"),
    ]
    assert all(PROMPT not in str(vars(record)) for record in caplog.records)
