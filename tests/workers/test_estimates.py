from __future__ import annotations

import pytest

from pixelpod.v1 import group_pb2
from tests.workers.models import make_model, make_request
from workers.batching import BatchKey
from workers.estimates import BatchSeconds, Estimates


def batch(batch_size: int = 1) -> group_pb2.RunBatch:
    return group_pb2.RunBatch(width=64, height=64, batch_size=batch_size)


def seconds(estimates: Estimates, images: int, steps: int = 10) -> float:
    bucket = make_model().bucket(64, 64)
    assert bucket is not None
    return estimates.seconds(BatchKey.of(make_request(steps=steps), bucket), images)


def test_nothing_is_expected_before_anything_was_measured() -> None:
    assert seconds(Estimates(), images=3) == 0


def test_steps_and_batches_are_extrapolated() -> None:
    estimates = Estimates()
    estimates.observe(batch(), step_seconds=0.25, beside_seconds=0.5)
    assert seconds(estimates, images=1, steps=20) == pytest.approx(5.5)
    assert seconds(estimates, images=5, steps=20) == pytest.approx(5.5 * 4 + 5.5), "a batch of 4 and one of 1"


def test_a_measured_size_counts_as_it_is() -> None:
    estimates = Estimates()
    estimates.observe(batch(1), step_seconds=0.25, beside_seconds=0.5)
    estimates.observe(batch(4), step_seconds=0.5, beside_seconds=1.0)
    assert seconds(estimates, images=4) == pytest.approx(6.0)
    assert seconds(estimates, images=2) == pytest.approx(6.0), "twice the nearest size, the smaller one"


def test_estimates_follow_what_happens() -> None:
    estimates = Estimates()
    estimates.observe(batch(), step_seconds=1.0, beside_seconds=0.0)
    estimates.observe(batch(), step_seconds=2.0, beside_seconds=0.0)
    assert estimates.batch(64, 64, 1) == BatchSeconds(step=pytest.approx(1.3), beside=0.0)
    for _ in range(20):
        estimates.observe(batch(), step_seconds=2.0, beside_seconds=0.0)
    assert estimates.batch(64, 64, 1).step == pytest.approx(2.0, rel=0.01)
