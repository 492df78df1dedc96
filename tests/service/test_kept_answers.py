"""Kept answers: for a while, within a budget, the oldest go first."""

from __future__ import annotations

import pytest

from pixelpod.server.events import encode
from pixelpod.v1 import images_pb2
from service.kept_answers import KeptAnswer, KeptAnswers


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def answer(size_bytes: int) -> KeptAnswer:
    return KeptAnswer(b"fingerprint", "tiny", (memoryview(bytes(size_bytes)),))


def test_size_is_that_of_the_events() -> None:
    accepted = images_pb2.GenerateEvent(accepted=images_pb2.Accepted(request_id="r"))
    assert KeptAnswer(b"", "tiny", (accepted, memoryview(bytes(100)))).size_bytes == len(encode(accepted)) + 100


def test_window(clock: Clock) -> None:
    kept = KeptAnswers(60, 1000, clock)
    first = answer(100)
    kept.keep(("", "a"), first)
    clock.now += 59.9
    assert kept.find(("", "a")) is first
    clock.now += 0.1
    assert kept.find(("", "a")) is None
    assert kept.size_bytes == 0


def test_a_look_does_not_lengthen_the_window(clock: Clock) -> None:
    kept = KeptAnswers(60, 1000, clock)
    kept.keep(("", "a"), answer(1))
    for _ in range(6):
        assert kept.find(("", "a")) is not None
        clock.now += 10
    assert kept.find(("", "a")) is None


def test_only_what_is_over_is_freed(clock: Clock) -> None:
    kept = KeptAnswers(60, 1000, clock)
    kept.keep(("", "a"), answer(100))
    clock.now += 30
    kept.keep(("", "b"), answer(10))
    clock.now += 30
    kept.forget_expired()
    assert kept.size_bytes == 10
    assert kept.find(("", "b")) is not None


def test_the_oldest_make_room(clock: Clock) -> None:
    kept = KeptAnswers(60, 250, clock)
    for request_id in "abc":
        kept.keep(("", request_id), answer(100))
    assert kept.size_bytes == 200
    assert [kept.find(("", request_id)) is not None for request_id in "abc"] == [False, True, True]
    kept.keep(("", "d"), answer(250))
    assert kept.size_bytes == 250
    assert [kept.find(("", request_id)) is not None for request_id in "bcd"] == [False, False, True]


def test_an_answer_over_the_limit_is_not_kept_and_costs_no_other(clock: Clock) -> None:
    kept = KeptAnswers(60, 250, clock)
    kept.keep(("", "a"), answer(100))
    kept.keep(("", "b"), answer(251))
    assert kept.find(("", "b")) is None
    assert kept.find(("", "a")) is not None
    assert kept.size_bytes == 100


def test_a_newer_answer_takes_the_place_and_the_window(clock: Clock) -> None:
    kept = KeptAnswers(60, 250, clock)
    kept.keep(("", "a"), answer(100))
    clock.now += 30
    newer = answer(50)
    kept.keep(("", "a"), newer)
    assert kept.size_bytes == 50
    clock.now += 59
    assert kept.find(("", "a")) is newer


def test_callers_are_apart(clock: Clock) -> None:
    kept = KeptAnswers(60, 250, clock)
    kept.keep(("alice", "a"), answer(1))
    assert kept.find(("bob", "a")) is None


@pytest.mark.parametrize(("seconds", "limit_bytes"), [(0, 1000), (60, 0)])
def test_nothing_is_kept_without_time_or_room(clock: Clock, seconds: float, limit_bytes: int) -> None:
    kept = KeptAnswers(seconds, limit_bytes, clock)
    kept.keep(("", "a"), answer(1))
    assert kept.find(("", "a")) is None
    assert kept.size_bytes == 0
