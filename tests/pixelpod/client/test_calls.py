"""Calls that succeed, are given up or run out of time."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import fields

import grpc
import pytest

from pixelpod.client import (
    Accepted,
    AsyncClient,
    Client,
    DeadlineError,
    Done,
    GenerateOptions,
    GenerateParameters,
    Progress,
    RequestCancelledError,
)
from pixelpod.v1 import images_pb2
from tests.pixelpod.client.conftest import Caller
from tests.pixelpod.stub_server import StubServer, accepted, answer, hang, model

WAIT_SECONDS = 10.0
BIG_FILES = [bytes([number]) * 3_000_001 for number in range(3)]
"""9 MB in all: more than one gRPC message may have."""


def test_images_are_assembled(server: StubServer, caller: Caller) -> None:
    server.script = answer(BIG_FILES)
    result = caller.generate(server.address, seed=5)
    assert [image.data for image in result.images] == BIG_FILES
    assert [image.seed for image in result.images] == [5, 6, 7]
    assert [image.index for image in result.images] == [0, 1, 2]
    assert {(image.media_type, image.width, image.height) for image in result.images} == {("image/png", 64, 64)}


def test_result_tells_everything(server: StubServer, caller: Caller) -> None:
    result = caller.generate(server.address, request_id="r-1", seed=2**64 - 1)
    assert (result.request_id, result.model, result.revision) == ("r-1", "tiny", "random-0")
    assert (result.group, result.epoch) == ("tiny-a", 7)
    assert result.parameters.seeds == (2**64 - 1,)
    assert (result.parameters.output_format, result.parameters.size_policy) == ("PNG", "EXACT")
    assert (result.parameters.priority, result.parameters.negative_prompt) == ("NORMAL", None)
    assert (result.parameters.steps, result.parameters.guidance_scale) == (4, 3.5)
    assert [(w.code, w.field, w.message) for w in result.warnings] == [
        ("GUIDANCE_IGNORED", "guidance_scale", "[it] was ignored")
    ]
    assert (result.timings.queue_seconds, result.timings.total_seconds) == (0.25, 1.0)
    assert result.message.images[0].sha256 == result.images[0].sha256


def test_stream_yields_typed_events(server: StubServer, caller: Caller) -> None:
    first, *middle, last = caller.stream(server.address, request_id="r-1")
    assert first == Accepted(request_id="r-1", position=2, predicted_seconds=1.5)
    assert middle == [Progress(1, 2, 1.0), Progress(2, 2, 0.0)]
    assert isinstance(last, Done)
    assert last.generation.images[0].data == b"an image"


def test_progress_callback(server: StubServer, caller: Caller) -> None:
    seen: list[Progress] = []
    caller.generate(server.address, on_progress=seen.append)
    assert seen == [Progress(1, 2, 1.0), Progress(2, 2, 0.0)]


def test_error_in_the_progress_callback_ends_the_call(server: StubServer, caller: Caller) -> None:
    server.script = hang(images_pb2.GenerateEvent(progress=images_pb2.Progress(step=1, steps=2)))
    with pytest.raises(ZeroDivisionError):
        caller.generate(server.address, on_progress=lambda progress: 1 // (progress.step - 1))
    assert server.cancelled.wait(WAIT_SECONDS)


def test_what_is_left_out_is_not_sent(server: StubServer, caller: Caller) -> None:
    caller.generate(server.address)
    (request,) = server.requests
    assert {field.name for field, _ in request.ListFields()} == {"request_id", "prompt"}
    assert not request.HasField("seed")
    assert len(request.request_id) == 32


def test_zero_is_sent(server: StubServer, caller: Caller) -> None:
    caller.generate(server.address, seed=0, steps=0, guidance_scale=0.0, negative_prompt="")
    (request,) = server.requests
    assert all(request.HasField(name) for name in ("seed", "steps", "guidance_scale", "negative_prompt"))
    assert not request.HasField("width")


def test_every_option_reaches_the_wire(server: StubServer, caller: Caller) -> None:
    options = GenerateOptions(
        "a red fox",
        model="tiny",
        negative_prompt="blur",
        width=64,
        height=96,
        num_images=2,
        steps=-1,
        guidance_scale=2.5,
        seed=9,
        max_sequence_length=32,
        output_format="WEBP",
        quality=80,
        size_policy="NEAREST",
        priority="HIGH",
        request_id="r-1",
    )
    assert None not in vars(options).values()
    caller.generate(server.address, options)
    assert server.requests == [
        images_pb2.GenerateRequest(
            prompt="a red fox",
            model="tiny",
            negative_prompt="blur",
            width=64,
            height=96,
            num_images=2,
            steps=-1,
            guidance_scale=2.5,
            seed=9,
            max_sequence_length=32,
            output_format=images_pb2.OUTPUT_FORMAT_WEBP,
            quality=80,
            size_policy=images_pb2.SIZE_POLICY_NEAREST,
            priority=images_pb2.PRIORITY_HIGH,
            request_id="r-1",
        )
    ]


def test_keyword_arguments_go_before_given_options(server: StubServer, caller: Caller) -> None:
    caller.generate(server.address, GenerateOptions("a red fox", seed=1, steps=3), seed=2)
    assert (server.requests[0].seed, server.requests[0].steps) == (2, 3)


def test_keyword_arguments_are_the_options() -> None:
    assert set(GenerateParameters.__annotations__) | {"prompt"} == {field.name for field in fields(GenerateOptions)}
    options = {field.name for field in fields(GenerateOptions)}
    assert set(images_pb2.GenerateRequest.DESCRIPTOR.fields_by_name) == options | {"resume_from"}


def test_models(server: StubServer, caller: Caller) -> None:
    server.models = lambda: images_pb2.ListModelsResponse(models=[model()])
    (tiny,) = caller.models(server.address)
    assert (tiny.name, tiny.revision, tiny.family, tiny.ready_groups) == ("tiny", "random-0", "flux2", 2)
    assert [(b.width, b.height, b.batch_sizes, b.warm) for b in tiny.buckets] == [
        (64, 64, (1, 2, 4), True),
        (96, 64, (1,), False),
    ]
    assert (tiny.limits.steps.minimum, tiny.limits.steps.maximum, tiny.limits.steps.choices) == (1, 50, ())
    assert tiny.limits.max_sequence_length.choices == (32, 64)
    assert (tiny.limits.guidance_scale.maximum, tiny.limits.guidance_used) == (20.0, True)
    assert (tiny.defaults.output_format, tiny.defaults.steps) == ("PNG", 4)


def test_deadline(server: StubServer, caller: Caller) -> None:
    server.script = hang()
    with pytest.raises(DeadlineError) as raised:
        caller.generate(server.address, deadline_seconds=0.3)
    assert raised.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert server.address in raised.value.message
    assert server.cancelled.wait(WAIT_SECONDS)


def test_leaving_a_stream_cancels_the_call(server: StubServer, caller: Caller) -> None:
    server.script = hang(accepted(images_pb2.GenerateRequest()))
    assert len(caller.stream(server.address, limit=1)) == 1
    assert server.cancelled.wait(WAIT_SECONDS)


def test_closing_the_client_ends_its_calls(server: StubServer) -> None:
    server.script = hang(accepted(images_pb2.GenerateRequest()))
    client = Client(server.address)
    events = client.stream("a red fox")
    next(events)
    closing = threading.Timer(0.1, client.close)
    closing.start()
    with pytest.raises(RequestCancelledError):
        next(events)
    closing.join()
    assert server.cancelled.wait(WAIT_SECONDS)


async def test_cancelling_a_task_cancels_its_call(server: StubServer) -> None:
    reached = asyncio.Event()
    server.script = hang(images_pb2.GenerateEvent(progress=images_pb2.Progress(step=1, steps=2)))
    async with AsyncClient(server.address) as client:
        task = asyncio.create_task(client.generate("a red fox", on_progress=lambda _: reached.set()))
        await asyncio.wait_for(reached.wait(), WAIT_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.cancelled.wait, WAIT_SECONDS)
