"""One decision at each boundary: rank 0's, on what all ranks report."""

from __future__ import annotations

import pytest

from pixelpod.v1 import group_pb2
from tests.workers.worlds import world
from workers.boundary import NO_PART, SUCCEEDED, FollowerBoundary, LeaderBoundary, decide, outcome_of
from workers.control import ControlChannel, WorldBroken

CONTINUE, ABORT = group_pb2.VERDICT_CONTINUE, group_pb2.VERDICT_ABORT
VALUE_ERROR, MEMORY_ERROR = outcome_of(ValueError("x")), outcome_of(MemoryError())


@pytest.mark.parametrize(
    ("outcomes", "wanted", "verdict"),
    [
        ([SUCCEEDED], True, CONTINUE),
        ([SUCCEEDED, SUCCEEDED], True, CONTINUE),
        ([SUCCEEDED, NO_PART], True, CONTINUE),
        ([SUCCEEDED, SUCCEEDED], False, ABORT),
        ([VALUE_ERROR], True, ABORT),
        ([VALUE_ERROR, VALUE_ERROR], True, ABORT),
        ([VALUE_ERROR, NO_PART], True, ABORT),
    ],
)
def test_verdict(outcomes: list[int], wanted: bool, verdict: int) -> None:
    assert decide(outcomes, wanted) == verdict


@pytest.mark.parametrize(
    "outcomes",
    [[SUCCEEDED, VALUE_ERROR], [VALUE_ERROR, SUCCEEDED, SUCCEEDED], [VALUE_ERROR, MEMORY_ERROR]],
)
def test_ranks_that_fared_differently_break_the_world(outcomes: list[int]) -> None:
    with pytest.raises(WorldBroken, match="failed by themselves"):
        decide(outcomes, wanted=False)


def test_outcomes_tell_kinds_of_errors_apart() -> None:
    assert outcome_of(None) == SUCCEEDED
    assert outcome_of(ValueError("one")) == outcome_of(ValueError("another")) != MEMORY_ERROR
    assert min(VALUE_ERROR, MEMORY_ERROR) > 0


def agree(outcomes: list[list[int]], wanted: list[bool]) -> list[object]:
    """Pass as many boundaries as there are outcomes. Return the verdicts, and the way the world broke if it did."""
    channel, seen = ControlChannel(30.0), []
    answers = iter(wanted)
    boundary = LeaderBoundary(channel, lambda: next(answers)) if channel.rank == 0 else FollowerBoundary(channel)
    for by_rank in outcomes:
        try:
            seen.append(boundary.agree(by_rank[channel.rank]))
        except WorldBroken as broken:
            return [*seen, str(broken)]
    return seen


def test_all_ranks_follow_rank_0_until_one_fails_by_itself() -> None:
    outcomes = [[SUCCEEDED, SUCCEEDED], [SUCCEEDED, SUCCEEDED], [SUCCEEDED, NO_PART], [SUCCEEDED, VALUE_ERROR]]
    with world(ranks=2) as ranks:
        first, second = ranks.run(agree, outcomes, [True, False, True, True])
    assert first == [CONTINUE, ABORT, CONTINUE, "ranks [1] of 2 failed by themselves; their logs say how"]
    assert second == [CONTINUE, ABORT, CONTINUE, "rank 0 sent shutdown within a batch"]
