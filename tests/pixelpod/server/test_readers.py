"""Readers are ended when they stall, at their deadline, and when too much is unread; what they held is counted down."""

from __future__ import annotations

import time

import grpc
import pytest

from pixelpod.server.readers import DRAIN_STALL_SECONDS, SLOWEST_BYTES_PER_SECOND, Reader, Readers

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


class Calls:
    """Readers of calls, and how these were ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **limits: object) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.reasons: list[str] = []
        self.readers = Readers(**{"stall_seconds": 10.0, "on_end": self.reasons.append, **limits})
        self.ended: list[tuple[str, grpc.StatusCode, str]] = []

    def enter(self, name: str, caller: str = "shop") -> Reader:
        return self.readers.enter(caller, lambda code, message: self.ended.append((name, code, message)))

    def sweep(self, seconds: float) -> list[str]:
        """Let time pass, and return the calls ended so far."""
        self.now += seconds
        self.readers.sweep()
        return [name for name, _, _ in self.ended]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def test_a_reader_that_takes_nothing_is_ended_once(calls: Calls) -> None:
    reader = calls.enter("a")
    with reader.taking(1000):
        assert calls.sweep(9.9) == []
        assert calls.sweep(0.2) == ["a"]
        assert calls.sweep(60) == ["a"]
    ((_, code, message),) = calls.ended
    assert (code, reader.ended_with) == (EXHAUSTED, EXHAUSTED)
    assert message.startswith("READER_STALLED: ")
    assert calls.reasons == ["stalled"]
    assert calls.readers.unread_bytes == 0


def test_a_reader_that_takes_messages_is_left_alone(calls: Calls) -> None:
    reader = calls.enter("a")
    for _ in range(5):
        with reader.taking(1000):
            assert calls.sweep(9) == []
    assert calls.sweep(1000) == [], "nothing is being written"


def test_a_large_message_may_take_longer(calls: Calls) -> None:
    with calls.enter("a").taking(SLOWEST_BYTES_PER_SECOND * 5):
        assert calls.sweep(14.9) == []
        assert calls.sweep(0.2) == ["a"]


def test_a_deadline_ends_a_call_also_in_a_write(calls: Calls) -> None:
    reader = calls.enter("a")
    reader.deadline = calls.now + 3
    with reader.taking(1000):
        assert calls.sweep(2.9) == []
        assert calls.sweep(0.2) == ["a"]
    assert calls.ended[0][1] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert calls.reasons == ["deadline"]


def test_a_server_that_stops_waits_less(calls: Calls) -> None:
    before, after = calls.enter("before"), calls.enter("after")
    with before.taking(1000):
        calls.readers.hurry()
        with after.taking(1000):
            assert calls.sweep(DRAIN_STALL_SECONDS - 0.1) == []
            assert sorted(calls.sweep(0.2)) == ["after", "before"]


def test_the_caller_that_is_over_its_limit_loses_the_call_that_stalled_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, caller_limit_bytes=100)
    other = calls.enter("other", "lab")
    other.add_unread(90)
    old, young = calls.enter("old"), calls.enter("young")
    for reader in (old, young):
        reader.add_unread(40)
        calls.now += 1
    old.take(10)  # so that now the other one has waited longer
    third = calls.enter("third")
    third.add_unread(40)
    assert [(name, code, message.split(":")[0]) for name, code, message in calls.ended] == [
        ("young", EXHAUSTED, "ANSWERS_UNREAD")
    ]
    assert calls.reasons == ["evicted"]
    assert calls.readers.unread_bytes == 90 + 30 + 40
    third.add_unread(1000)
    assert third.ended_with is EXHAUSTED, "an answer that is too large by itself ends too"
    assert other.ended_with is None
    for reader in (old, young, third, other):
        calls.readers.leave(reader)
    assert calls.readers.unread_bytes == 0


def test_over_the_limit_of_all_the_caller_that_has_most_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, limit_bytes=100)
    small, large = calls.enter("small", "lab"), calls.enter("large", "shop")
    small.add_unread(30)
    large.add_unread(60)
    small.add_unread(20)
    assert [name for name, _, _ in calls.ended] == ["large"]
    assert calls.readers.unread_bytes == 50
    large.add_unread(500)
    assert calls.readers.unread_bytes == 50, "what comes for a call that was ended counts no more"
    large.take(60)
    assert calls.readers.unread_bytes == 50
