from __future__ import annotations

import threading
import time

from workers.stall import StallWatch

SECONDS = 10.0
PAUSE_SECONDS = 0.01
"""Before each look: shorter than any limit here."""


class Stalls:
    """A watch, and what it said."""

    def __init__(self, factor: float = 2.0, floor_seconds: float = 0.1) -> None:
        self.compiling = False
        self.told: list[float] = []
        self.came = threading.Event()
        self.watch = StallWatch(factor, floor_seconds, lambda: self.compiling, self._note)

    def _note(self, seconds: float) -> None:
        self.told.append(seconds)
        self.came.set()


def test_a_part_that_takes_too_long_is_told_once() -> None:
    stalls = Stalls()
    stalls.watch.start()
    stalls.watch.progress(expected_seconds=0.2)
    started = time.monotonic()
    assert stalls.came.wait(SECONDS)
    assert time.monotonic() - started > 0.4, "twice as long as expected"
    assert stalls.told == [stalls.told[0]]
    assert stalls.told[0] > 0.4


def test_progress_starts_the_time_again() -> None:
    stalls = Stalls(floor_seconds=0.5)
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        stalls.watch.progress(expected_seconds=0.0)
        time.sleep(PAUSE_SECONDS)
        assert stalls.watch.stalled_seconds() is None


def test_idle_may_take_any_time() -> None:
    stalls = Stalls(floor_seconds=0.05)
    assert stalls.watch.stalled_seconds() is None
    stalls.watch.progress(expected_seconds=0.0)
    stalls.watch.idle()
    assert not stalls.came.wait(0.2)
    assert stalls.watch.stalled_seconds() is None


def test_a_compile_may_take_any_time() -> None:
    stalls = Stalls(floor_seconds=0.05)
    stalls.watch.progress(expected_seconds=0.0)
    stalls.compiling = True
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        time.sleep(PAUSE_SECONDS)
        assert stalls.watch.stalled_seconds() is None
    stalls.compiling = False
    assert stalls.watch.stalled_seconds() is None, "the time starts again after it"
