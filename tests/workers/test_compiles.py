"""Compiles are counted and timed where they happen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from workers.compiles import ELSEWHERE, CompileTracker


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@torch.compile(backend="eager", dynamic=False)
def double(values: torch.Tensor) -> torch.Tensor:
    return values * 2


def test_counts_by_component_and_bucket() -> None:
    observed: list[tuple[str, str, float]] = []
    with CompileTracker(lambda *compile: observed.append(compile)) as tracker:
        with tracker.at("transformer", "64x64"):
            double(torch.ones(2))
            double(torch.ones(2))
            with tracker.at("vae", "64x64"):
                double(torch.ones(3))
            double(torch.ones(4))
        with tracker.at("transformer", "96x64"):
            double(torch.ones(5))
        double(torch.ones(6))
    counts = {("transformer", "64x64"): 2, ("vae", "64x64"): 1, ("transformer", "96x64"): 1, ELSEWHERE: 1}
    assert tracker.counts() == counts
    assert tracker.count() == 5
    assert [(component, bucket) for component, bucket, _ in observed] == [
        ("transformer", "64x64"),
        ("vae", "64x64"),
        ("transformer", "64x64"),
        ("transformer", "96x64"),
        ELSEWHERE,
    ]
    assert all(seconds > 0 for _, _, seconds in observed)
    assert tracker.seconds() == pytest.approx(sum(seconds for _, _, seconds in observed))


def test_nothing_compiled_is_nothing_counted() -> None:
    double(torch.ones(2))
    with CompileTracker() as tracker, tracker.at("transformer", "64x64"):
        double(torch.ones(2))
    assert (tracker.count(), tracker.counts(), tracker.seconds()) == (0, {}, 0.0)


def test_a_closed_tracker_does_not_listen() -> None:
    with CompileTracker() as tracker:
        pass
    double(torch.ones(2))
    assert tracker.count() == 0


def test_the_place_is_left_when_computing_fails() -> None:
    with CompileTracker() as tracker:
        with pytest.raises(ValueError, match="broken"), tracker.at("transformer", "64x64"):
            raise ValueError("broken")
        double(torch.ones(2))
    assert tracker.counts() == {ELSEWHERE: 1}
