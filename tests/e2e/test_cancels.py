"""Callers that leave at random moments: in the queue, at encoding, within steps, at decoding and after."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.groups import Group, images_of, pixels_of, request, running, write_quick_model
from tests.e2e.processes import wait_serving, wait_until

READY_SECONDS = 90.0
CALL_SECONDS = 60.0
CALLERS = 4


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Return a two-rank group of a model that is the same alone and with others."""
    file = write_quick_model(tmp_path_factory.mktemp("flux2"), batch_size=2, deterministic=True)
    with running(file) as group:
        wait_serving(group.address, READY_SECONDS, group.process)
        yield group


def picture(group: Group) -> np.ndarray:
    (image,) = images_of(group.execute())
    return pixels_of(image)


@pytest.mark.parametrize(
    "cancels", [40, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])], ids=str
)
def test_cancels_at_random_moments_leave_nothing_behind(group: Group, cancels: int) -> None:
    expected, before = picture(group), _codes(group)

    def leave_early(seed: int) -> grpc.StatusCode:
        draw = random.Random(seed)
        call = group.stub.ExecuteStream(request(steps=20, seeds=[seed]), timeout=CALL_SECONDS)
        steps = draw.randrange(24)  # of 20: some callers stay
        next((events for events in call if events.progress.step >= steps), None)
        call.cancel()
        return call.code()  # waits for the end

    with ThreadPoolExecutor(CALLERS) as pool:
        codes = list(pool.map(leave_early, range(cancels)))
    assert len(codes) == cancels
    assert set(codes) <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.OK}
    assert codes.count(grpc.StatusCode.CANCELLED) > cancels / 2
    group.wait_idle()
    assert np.array_equal(picture(group), expected)
    counted = sum(before.values()) + cancels + 1
    wait_until(lambda: sum(_codes(group).values()) >= counted, 5, lambda: f"calls were not counted: {_codes(group)}")
    after = _codes(group)
    assert sum(after.values()) == counted, "each call is counted once"
    assert set(after) <= {"OK", "CANCELLED"}


def _codes(group: Group) -> dict[str, float]:
    """Return how many calls the group has counted, by code."""
    samples = [
        sample
        for family in text_string_to_metric_families(group.metrics_page())
        for sample in family.samples
        if sample.name == "pixelpod_group_requests_total"
    ]
    return {sample.labels["code"]: sample.value for sample in samples}
