"""Warm-up reaches every graph that a valid request can reach, each once."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from pixelpod.v1 import group_pb2
from tests.workers.models import make_model, make_request
from workers.batching import split_into_batches
from workers.validation import check_request
from workers.warmup import overlong_prompt_batches, warming_batches

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
        batches = split_into_batches(request, check_request(request, model))
        reached |= {graph_of(batch, family) for batch in batches}
    assert reached == set(warmed)


def test_warming_batches_are_full_and_within_the_limits() -> None:
    model = make_model()
    limits = model.limits.guidance_scale
    for bucket in model.buckets:
        for batch in warming_batches(model, bucket, CLASSIFIER_FREE):
            assert len(batch.slots) == batch.batch_size
            assert batch.steps == 2, "the second step can meet operators that the first does not"
            assert limits.min <= batch.guidance_scale <= limits.max


def test_every_prompt_length_is_warmed_with_a_prompt_that_fills_it() -> None:
    """FLUX.2's text encoder attends without a mask when no token is padding, which is a graph of its own."""
    model = make_model()
    batches = list(overlong_prompt_batches(model))
    assert [batch.max_sequence_length for batch in batches] == list(model.limits.max_sequence_lengths)
    for batch in batches:
        assert all(len(slot.prompt.split()) > batch.max_sequence_length for slot in batch.slots)
