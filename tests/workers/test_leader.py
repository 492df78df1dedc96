"""The leader with a real model in a world of one rank: requests in, images out, and what a failure costs."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import io
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import distributed as dist

from pixelpod.server.errors import ComputationFailed, DeadlinePassed, RequestError
from pixelpod.server.events import encode
from pixelpod.v1 import group_pb2, images_pb2
from tests.workers.computing import Picture, compute, load_single
from tests.workers.models import accept, make_queue, make_request
from workers.batch import BatchAborted, BatchRunner
from workers.compiles import CompileTracker
from workers.control import ControlChannel
from workers.devices import device_named
from workers.estimates import Estimates
from workers.families import Family
from workers.leader import Leader, lead_batch
from workers.metrics import GroupMetrics
from workers.model_file import Bucket, FamilyName, ModelFile
from workers.queue import RequestQueue
from workers.request import AcceptedRequest
from workers.stall import StallWatch
from workers.status import StatusBoard
from workers.warmup import proof_batch

SEQUENCE_LENGTH = 64
PROMPT = "城の上の月 🌙\nlook up"


@pytest.fixture(scope="module")
def channel() -> Iterator[ControlChannel]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield ControlChannel(timeout_seconds=60)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def family(tiny_model: Callable[[FamilyName], ModelFile]) -> Family:
    """Return a model whose larger requests take several batches."""
    return load_single(tiny_model(FamilyName.SD3), buckets=(Bucket(width=64, height=64, batch_sizes=(1, 2)),))


@pytest.fixture(scope="module")
def runner(family: Family) -> Iterator[BatchRunner]:
    with CompileTracker() as compiles:
        yield BatchRunner(
            family, device_named("cpu"), compiles, decodes=True, run_ahead_steps=2, prompt_cache_bytes=1_000_000
        )


@dataclass
class Led:
    """A leader that runs on a thread of its own until its queue is closed."""

    leader: Leader
    queue: RequestQueue
    metrics: GroupMetrics
    bucket: Bucket

    def put(self, seconds: float = 60.0, **changes: Any) -> AcceptedRequest:
        message = make_request(
            **{"model": "tiny-sd3", "prompt": PROMPT, "steps": 2, "max_sequence_length": SEQUENCE_LENGTH} | changes
        )
        request = accept(message, self.bucket, seconds)
        self.queue.put(request)
        return request

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"pixelpod_group_{name}", labels) or 0


@pytest.fixture
async def led(channel: ControlChannel, runner: BatchRunner) -> AsyncIterator[Led]:
    model, queue, estimates = runner.family.model, make_queue(), Estimates()
    metrics = GroupMetrics(model, queue, StatusBoard("group-a", model, 1, 1, queue))
    identity = images_pb2.GenerateResponse(model=model.name, revision=model.revision, group="group-a", epoch=99)
    leader = Leader(
        channel,
        runner,
        queue,
        estimates,
        metrics,
        identity,
        heartbeat_seconds=0.05,
        encoding_threads=2,
        stall_watch=StallWatch(10.0, 60.0, lambda: False, lambda seconds: None),
        proof=proof_batch(model),
    )
    thread = threading.Thread(target=leader.run)
    thread.start()
    yield Led(leader, queue, metrics, model.buckets[0])
    queue.close()
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()


@dataclass
class Answer:
    """What a caller got."""

    files: list[bytes] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    done: images_pb2.GenerateResponse = field(default_factory=images_pb2.GenerateResponse)


async def answer_to(request: AcceptedRequest) -> Answer:
    answer = Answer()
    async for encoded in request.events():
        event = images_pb2.GenerateEvent.FromString(encode(encoded))
        match event.WhichOneof("event"):
            case "progress":
                answer.steps.append(event.progress.step)
            case "image_chunk":
                assert event.image_chunk.index == len(answer.files)
                answer.files.append(event.image_chunk.data)
            case "done":
                answer.done = event.done
    return answer


async def failure_of(request: AcceptedRequest) -> RequestError:
    with pytest.raises(RequestError) as failure:
        await answer_to(request)
    return failure.value


def open_image(file: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(file))
    image.load()
    return image


async def test_images_of_several_batches_come_in_order_with_all_they_tell(led: Led, family: Family) -> None:
    seeds = [11, 0, 2**64 - 1]
    answer = await answer_to(led.put(seeds=seeds, guidance_scale=3.0, negative_prompt="rain"))

    def picture(seed: int) -> Picture:
        return Picture(PROMPT, "rain", seed, steps=2, guidance_scale=3.0)

    _, first = compute(family, [picture(seed) for seed in seeds[:2]])
    _, rest = compute(family, [picture(seeds[2])])
    for file, expected in zip(answer.files, [*first, *rest], strict=True):
        assert (np.asarray(open_image(file)) == expected).all()

    assert answer.steps[-1] == 4, "two batches of two steps"
    done = answer.done
    assert (done.request_id, done.model, done.revision) == ("r-1", "tiny-sd3", "random-0")
    assert (done.group, done.epoch) == ("group-a", 99)
    assert [image.seed for image in done.images] == seeds
    assert [image.sha256 for image in done.images] == [hashlib.sha256(file).hexdigest() for file in answer.files]
    assert open_image(answer.files[2]).text == {
        "prompt": PROMPT,
        "negative_prompt": "rain",
        "seed": str(2**64 - 1),
        "steps": "2",
        "guidance_scale": "3.0",
        "max_sequence_length": "64",
        "size": "64x64",
        "model": "tiny-sd3",
        "revision": "random-0",
    }
    assert led.sample("batch_size_count") == 2
    assert led.sample("batch_size_sum") == 3
    assert led.sample("stage_seconds_count", stage="image_encode") == 3


async def test_what_was_cut_is_told_once(led: Led) -> None:
    long = "very long " * 60
    answer = await answer_to(led.put(prompt=long, negative_prompt=long, guidance_scale=5.0, seeds=[1, 2]))
    fields = [warning.field for warning in answer.done.warnings]
    assert fields.count("prompt") == fields.count("negative_prompt") == 3, "two CLIP encoders and T5"
    assert all(warning.code == images_pb2.WARNING_CODE_PROMPT_TRUNCATED for warning in answer.done.warnings)


async def test_requests_are_computed_together_and_each_gets_its_own_images(led: Led, family: Family) -> None:
    # The first one keeps the device busy while the others arrive.
    first = led.put(steps=7)
    together = [led.put(prompt=f"{number} foxes", seeds=[number]) for number in range(4)]
    await answer_to(first)
    answers = [await answer_to(request) for request in together]
    for number, answer in enumerate(answers):
        picture = Picture(f"{number} foxes", seed=number, steps=2)
        _, expected = compute(family, [picture, Picture()])
        assert (np.asarray(open_image(answer.files[0])) == expected[0]).all()
        assert answer.steps[-1] == 2
    assert led.sample("batch_size_count") == 3
    assert led.sample("batch_size_sum") == 5


async def test_nothing_is_kept_of_requests_that_ended(led: Led) -> None:
    request = led.put(seeds=[1, 2, 3])
    await answer_to(request)
    gone = weakref.ref(request)
    led.queue.leave(request)
    del request
    await answer_to(led.put(steps=1))
    gc.collect()
    assert gone() is None


async def test_one_of_a_batch_that_leaves_changes_nothing_for_its_mates(
    led: Led, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted_steps(family, monkeypatch) as steps:
        first = led.put(steps=7)
        stays, leaves = led.put(prompt="a fox", steps=20), led.put(prompt="a dog", steps=20)
        await answer_to(first)
        events = leaves.events()
        while (await anext(events)).progress.step < 2:
            pass
        leaves.abandon()
        answer = await answer_to(stays)
        assert len(steps) == 27, "the batch went on"
    _, expected = compute(family, [Picture("a fox", seed=3, steps=20), Picture()])
    assert (np.asarray(open_image(answer.files[0])) == expected[0]).all()
    assert led.sample("stage_seconds_count", stage="image_encode") == 2, "that of the one who left is no file"


async def test_a_prompt_is_encoded_once_and_its_images_are_the_same(
    led: Led, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    encode = family.encode

    def count(prompt: str, max_sequence_length: int) -> Any:
        encoded.append(prompt)
        return encode(prompt, max_sequence_length)

    monkeypatch.setattr(family, "encode", count)
    answers = [await answer_to(led.put(prompt="an owl", negative_prompt="sleet", guidance_scale=3.0)) for _ in range(2)]
    assert encoded == ["an owl", "sleet"]
    assert answers[0].done.images[0].sha256 == answers[1].done.images[0].sha256
    assert led.sample("prompts_total", source="encoded") == led.sample("prompts_total", source="cached") == 2
    await answer_to(led.put(prompt="an owl", guidance_scale=1.0, max_sequence_length=128))
    assert encoded == ["an owl", "sleet", "an owl"], "another length is another encoding"


async def test_values_that_are_not_finite_fail_their_request_alone(
    led: Led, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = family.decode

    def spoil_first(denoising: Any) -> Any:
        if denoising.images == 2:
            denoising.latents[0] = float("nan")
        return decode(denoising)

    monkeypatch.setattr(family, "decode", spoil_first)
    first = led.put(steps=7)
    spoilt, good = led.put(prompt="a dog"), led.put(prompt="a fox")
    await answer_to(first)
    failure = await failure_of(spoilt)
    assert isinstance(failure, ComputationFailed)
    assert failure.reason == "NOT_FINITE"
    assert led.sample("not_finite_total") == 1
    monkeypatch.undo()
    _, expected = compute(family, [Picture(), Picture("a fox", seed=3)])
    assert (np.asarray(open_image((await answer_to(good)).files[0])) == expected[1]).all()


async def test_a_request_that_fails_the_model_fails_alone(
    led: Led, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = family.start

    def refuse_dogs(batch: group_pb2.RunBatch, *conditionings: Any) -> Any:
        if any(slot.prompt == "a dog" for slot in batch.slots):
            raise RuntimeError("no dogs")
        return start(batch, *conditionings)

    monkeypatch.setattr(family, "start", refuse_dogs)
    first = led.put(steps=7)
    bad, good = led.put(prompt="a dog", seeds=[1]), led.put(prompt="a fox", seeds=[2])
    await answer_to(first)
    assert (await failure_of(bad)).reason == "COMPUTATION_FAILED"
    assert len((await answer_to(good)).files) == 1


@pytest.mark.parametrize("stage", ["encode", "start", "step", "decode"])
async def test_an_error_in_any_stage_fails_its_request_alone(
    led: Led, family: Family, stage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError(f"no memory for {arguments[0]}" if stage == "encode" else "no memory")

    monkeypatch.setattr(family, stage, fail)
    failure = await failure_of(led.put(prompt=f"月 {stage}"))
    assert (type(failure), failure.reason) == (ComputationFailed, "COMPUTATION_FAILED")
    assert "in fail" in caplog.text, "the log tells where"
    assert "月" not in caplog.text + failure.message
    monkeypatch.undo()
    assert len((await answer_to(led.put())).files) == 1


async def test_out_of_memory_fails_the_request_and_the_group_proves_itself(
    led: Led, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = family.start, []

    def run_out(batch: group_pb2.RunBatch, *conditionings: Any) -> Any:
        started.append(batch.steps)
        if batch.steps == 7:
            raise torch.OutOfMemoryError("it is full")
        return start(batch, *conditionings)

    monkeypatch.setattr(family, "start", run_out)
    assert (await failure_of(led.put(steps=7))).reason == "COMPUTATION_FAILED"
    assert len((await answer_to(led.put(steps=2))).files) == 1
    assert started == [7, 1, 2], "a small image in between"
    assert led.sample("out_of_memory_total") == 1


async def test_a_compile_is_told_to_the_request_that_paid_for_it(
    led: Led, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, graph = family.decode, torch.compile(lambda values: values + 1, backend="eager")

    def decode_with_graph(denoising: Any) -> Any:
        graph(torch.ones(3))
        return decode(denoising)

    monkeypatch.setattr(family, "decode", decode_with_graph)
    timings = (await answer_to(led.put())).done.timings
    assert 0 < timings.compile_seconds <= timings.decode_seconds + 0.001
    labels = {"component": "vae", "bucket": "64x64"}
    assert led.sample("compiles_after_ready_total", **labels) == 1
    assert (await answer_to(led.put())).done.timings.compile_seconds == 0
    assert led.sample("compiles_after_ready_total", **labels) == 1


@asynccontextmanager
async def counted_steps(family: Family, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    """Count denoising steps, and those since."""
    steps: list[int] = []
    step = family.step

    def count(denoising: Any) -> None:
        steps.append(denoising.step)
        step(denoising)

    with monkeypatch.context() as patch:
        patch.setattr(family, "step", count)
        yield steps


async def test_abandoned_it_stops_at_the_next_boundary_and_is_never_decoded(
    led: Led, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted_steps(family, monkeypatch) as steps:
        request = led.put(steps=50)
        events = request.events()
        while (event := await anext(events)).progress.step < 2:
            pass
        request.abandon()
        seen = len(steps)
        await failure_of(request)
        assert event.progress.steps == 50
        assert len(steps) <= seen + 2
    assert led.sample("stage_seconds_count", stage="decode") == 0


async def test_past_its_deadline_it_stops(led: Led, family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    async with counted_steps(family, monkeypatch) as steps:
        assert isinstance(await failure_of(led.put(steps=50, seconds=0.15)), DeadlinePassed)
        next_one = led.put(steps=1)
        assert len((await answer_to(next_one)).files) == 1
        assert len(steps) < 50


def test_an_aborted_batch_tells_what_this_rank_met(channel: ControlChannel, runner: BatchRunner) -> None:
    batch = group_pb2.RunBatch(
        width=64,
        height=64,
        batch_size=1,
        steps=2,
        max_sequence_length=SEQUENCE_LENGTH,
        slots=[group_pb2.Slot(prompt=PROMPT)],
    )
    with pytest.raises(BatchAborted) as aborted:
        lead_batch(channel, runner, batch, wanted=lambda: False)
    assert aborted.value.error is None
    result = lead_batch(channel, runner, group_pb2.RunBatch.FromString(batch.SerializeToString()))
    assert result.pixels is not None
    assert result.pixels.shape == (1, 64, 64, 3)
    seconds = result.seconds
    assert min(seconds.encode, seconds.denoise, seconds.decode) > 0
    assert seconds.compile == 0
