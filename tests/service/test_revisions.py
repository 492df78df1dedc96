from __future__ import annotations

from collections import Counter

from service.revisions import choose_revision

WEIGHTS = {"old": 3.0, "new": 1.0, "retired": 0.0}


def test_shares_follow_the_weights() -> None:
    chosen = Counter(choose_revision(WEIGHTS, ["old", "new", "retired", "unlisted"]) for _ in range(2000))
    assert set(chosen) == {"old", "new"}
    assert 350 < chosen["new"] < 650, "a quarter of 2000: this fails once in 10^11 runs"


def test_only_what_is_ready() -> None:
    assert {choose_revision(WEIGHTS, ["new"]) for _ in range(20)} == {"new"}


def test_without_a_weighted_revision_any_will_do() -> None:
    assert choose_revision(WEIGHTS, ["retired", "unlisted"]) is None
    assert choose_revision({}, ["old", "new"]) is None
