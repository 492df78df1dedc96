"""What the liveness probe makes of the ranks' signs of life, on a clock of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.liveness import LivenessFile, RankState, Sign
from workers.vitals import Vitals


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> LivenessFile:
    """Return the file of two ranks that have just started."""
    file = LivenessFile.create(tmp_path / "liveness", 2)
    for rank in range(2):
        file.write(rank, Sign(100 + rank, 1, RankState.LOADING))
    return file


@pytest.fixture
def vitals(file: LivenessFile, clock: Clock) -> Vitals:
    vitals = Vitals(file, timeout_seconds=5, loading_timeout_seconds=120, clock=clock)
    assert vitals.good()
    return vitals


@pytest.mark.parametrize(("state", "limit_seconds"), [(RankState.LOADING, 120), (RankState.SERVING, 5)])
def test_a_silent_rank_is_not_well_after_its_limit(
    vitals: Vitals, file: LivenessFile, clock: Clock, state: RankState, limit_seconds: float
) -> None:
    for rank in range(2):
        file.write(rank, Sign(100 + rank, 2, state))
    assert vitals.good()
    clock.seconds = limit_seconds
    assert vitals.good()
    file.write(0, Sign(100, 3, state))
    clock.seconds = limit_seconds + 0.1
    assert not vitals.good()
    file.write(1, Sign(101, 3, state))
    assert vitals.good()


def test_a_rank_that_never_starts_is_not_well_in_the_end(tmp_path: Path, clock: Clock) -> None:
    vitals = Vitals(LivenessFile.create(tmp_path / "liveness", 1), 5, 120, clock)
    assert vitals.good()
    clock.seconds = 121
    assert not vitals.good()


def test_a_rank_that_left_needs_no_sign(vitals: Vitals, file: LivenessFile, clock: Clock) -> None:
    for rank in range(2):
        file.write(rank, Sign(100 + rank, 2, RankState.LEFT))
    assert vitals.good()
    clock.seconds = 1000
    assert vitals.good()
