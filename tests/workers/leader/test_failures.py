"""What a failure costs, and what leaving callers save."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pixelpod.server.errors import ComputationFailed, DeadlinePassed
from pixelpod.v1 import group_pb2
from tests.workers.computing import Picture, compute
from tests.workers.leader.leading import (
    PROMPT,
    SEQUENCE_LENGTH,
    Led,
    answer_to,
    counted_steps,
    failure_of,
    open_image,
    steps_done,
)
from workers.batch import BatchAborted, BatchRunner
from workers.control import ControlChannel
from workers.families import Family
from workers.leader import lead_batch


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


async def test_abandoned_it_stops_at_the_next_boundary_and_is_never_decoded(
    led: Led, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted_steps(family, monkeypatch) as steps:
        request = led.put(steps=50)
        progress = await steps_done(request, 2)
        request.abandon()
        seen = len(steps)
        await failure_of(request)
        assert progress.steps == 50
        assert len(steps) <= seen + 2
    assert led.sample("stage_seconds_count", stage="decode") == 0


async def test_past_its_deadline_it_stops(led: Led, family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    async with counted_steps(family, monkeypatch, least_seconds=0.01) as steps:
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
