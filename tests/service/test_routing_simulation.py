"""Frontends that know nothing of each other share groups well: benchmarks.routing, small."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.routing import POLICIES, Result
from benchmarks.simulation import Scene

BUSY = Scene(groups=40, frontends=4, load=0.9, requests=2000, delay_seconds=0.02, seed=1)


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {name: policy(BUSY) for name, policy in POLICIES.items()}


def test_the_slowest_hundredth_is_faster_than_with_usual_balancers(results: dict[str, Result]) -> None:
    ours = results["pixelpod"].quantile(0.99)
    assert ours < 0.9 * results["least outstanding"].quantile(0.99)
    assert ours < 0.6 * results["round robin"].quantile(0.99)
    assert ours < 0.6 * results["random"].quantile(0.99)


def test_it_is_near_the_best_that_could_be(results: dict[str, Result]) -> None:
    assert results["pixelpod"].quantile(0.99) < 1.3 * results["ideal"].quantile(0.99)


def test_few_requests_meet_a_group_that_others_filled(results: dict[str, Result]) -> None:
    assert results["pixelpod"].refusals < 0.2 * BUSY.requests


def test_every_run_of_a_scene_is_the_same() -> None:
    scene = dataclasses.replace(BUSY, requests=300)
    assert POLICIES["pixelpod"](scene) == POLICIES["pixelpod"](scene)
