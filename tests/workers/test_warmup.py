"""Warm-up reaches every graph that a valid request can reach, each once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pixelpod.v1 import group_pb2
from tests.workers.computing import load_single
from tests.workers.models import make_model, make_queue, make_request
from workers.batch import BatchRunner
from workers.batching import batch_sizes
from workers.compiles import CompileTracker
from workers.control import ControlChannel
from workers.devices import device_named
from workers.errors import ModelRefused
from workers.estimates import Estimates
from workers.families import Family
from workers.model_file import Bucket, FamilyName, ModelFile, OnWarmUpFailure
from workers.status import StatusBoard
from workers.validation import check_request
from workers.warmup import overlong_prompt_batches, warm_up, warming_batches

CLASSIFIER_FREE: Any = SimpleNamespace(uses_guidance_pass=lambda guidance_scale: guidance_scale > 1)
DISTILLED: Any = SimpleNamespace(uses_guidance_pass=lambda guidance_scale: False)


def graph_of(batch: group_pb2.RunBatch, family: Any) -> tuple[int | bool, ...]:
    guided = family.uses_guidance_pass(batch.guidance_scale)
    return batch.width, batch.height, batch.batch_size, batch.max_sequence_length, guided


@pytest.mark.parametrize(
    ("family", "limits", "graphs"),
    [
        (CLASSIFIER_FREE, {"min": 0.0, "max": 10.0}, (3 + 1) * 2 * 2),
        (CLASSIFIER_FREE, {"min": 2.0, "max": 10.0}, (3 + 1) * 2),
        (DISTILLED, {"min": 0.0, "max": 10.0}, (3 + 1) * 2),
    ],
)
def test_every_reachable_graph_is_warmed_once(family: Any, limits: dict[str, float], graphs: int) -> None:
    document = make_model().model_dump(mode="json")
    document["limits"]["guidance_scale"] = limits
    model = make_model(limits=document["limits"])
    warmed = [graph_of(batch, family) for bucket in model.buckets for batch in warming_batches(model, bucket, family)]
    assert len(warmed) == len(set(warmed)) == graphs

    sizes = [(64, 64), (128, 64)]
    images, lengths = range(1, 9), [77, 256]
    guidance_scales = [scale for scale in (0.0, 1.0, 1.001, 2.0, 10.0) if limits["min"] <= scale <= limits["max"]]
    reached = set()
    for (width, height), count, length, scale in itertools.product(sizes, images, lengths, guidance_scales):
        request = make_request(
            width=width, height=height, seeds=[0] * count, max_sequence_length=length, guidance_scale=scale
        )
        bucket = check_request(request, model)
        guided = family.uses_guidance_pass(scale)
        reached |= {(width, height, size, length, guided) for size in batch_sizes(count, bucket)}
    assert reached == set(warmed)


def test_warming_batches_are_full_and_within_the_limits() -> None:
    model = make_model()
    limits = model.limits.guidance_scale
    for bucket in model.buckets:
        for batch in warming_batches(model, bucket, CLASSIFIER_FREE):
            assert len(batch.slots) == batch.batch_size
            assert limits.min <= batch.guidance_scale <= limits.max
            assert batch.steps == 2, "the first step reads noise, the others what a step returned"


def test_every_prompt_length_is_warmed_with_a_prompt_that_fills_it() -> None:
    """FLUX.2's text encoder attends without a mask when no token is padding, which is a graph of its own."""
    model = make_model()
    batches = list(overlong_prompt_batches(model))
    assert [batch.max_sequence_length for batch in batches] == list(model.limits.max_sequence_lengths)
    for batch in batches:
        assert all(len(slot.prompt.split()) > batch.max_sequence_length for slot in batch.slots)


@pytest.fixture(scope="module")
def family(tiny_model: Callable[[FamilyName], ModelFile]) -> Family:
    """Return a model of two sizes, of which 64x64 is the default."""
    buckets = tuple(Bucket(width=width, height=64) for width in (96, 64))
    return load_single(tiny_model(FamilyName.SD3), buckets=buckets)


def warm(
    channel: ControlChannel, family: Family, broken_width: int, policy: OnWarmUpFailure, patch: pytest.MonkeyPatch
) -> list[tuple[int, bool]]:
    """Warm up a model that fails at one width. Return each bucket's width, and whether it became warm."""
    start = family.start

    def fail(batch: group_pb2.RunBatch, *conditionings: Any) -> Any:
        if batch.width == broken_width:
            raise RuntimeError("no memory\nin a long story")
        return start(batch, *conditionings)

    patch.setattr(family, "start", fail)
    model = family.model.model_copy(update={"on_warm_up_failure": policy})
    status = StatusBoard("group-a", model, ranks=1, epoch=1, queue=make_queue())
    with CompileTracker() as compiles:
        runner = BatchRunner(family, device_named("cpu"), compiles, decodes=True, run_ahead_steps=2)
        warm_up(model, channel, runner, status, Estimates())
    return [(bucket.width, bucket.warm) for bucket in status.snapshot().model.buckets]


def test_a_failing_bucket_refuses_the_start(
    channel: ControlChannel, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = "warm-up failed for bucket 96x64 at batch size 1, max_sequence_length 64: RuntimeError: no memory$"
    with pytest.raises(ModelRefused, match=named):
        warm(channel, family, 96, OnWarmUpFailure.REFUSE, monkeypatch)


def test_a_failing_bucket_stays_cold_where_the_model_file_says_so(
    channel: ControlChannel, family: Family, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert warm(channel, family, 96, OnWarmUpFailure.SERVE_WITHOUT, monkeypatch) == [(96, False), (64, True)]
    assert "serves without it: 96x64 at batch size 1" in caplog.text


def test_the_default_size_is_never_done_without(
    channel: ControlChannel, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelRefused, match="bucket 64x64"):
        warm(channel, family, 64, OnWarmUpFailure.SERVE_WITHOUT, monkeypatch)
