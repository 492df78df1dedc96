"""Notices a batch that makes no progress: a rank hangs in a computation or a collective that will never end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LOOK_SECONDS = 0.1


class StallWatch:
    """Compares the time since the last progress with a limit, on a thread of its own: the main thread may hang.

    Args:
        factor: A part of a batch that takes this many times as long as expected is stalled.
        floor_seconds: But not before this time.
        compiling: Tells whether a compile runs, which may take any time.
        on_stall: Called once, with the seconds without progress.
    """

    def __init__(
        self, factor: float, floor_seconds: float, compiling: Callable[[], bool], on_stall: Callable[[float], None]
    ) -> None:
        self._factor = factor
        self._floor_seconds = floor_seconds
        self._compiling = compiling
        self._on_stall = on_stall
        self._progress = time.monotonic()
        self._limit_seconds: float | None = None

    def start(self) -> None:
        """Watch from now on."""
        threading.Thread(target=self._run, name="stall-watch", daemon=True).start()

    def progress(self, expected_seconds: float) -> None:
        """Note progress, and how long the next part should take."""
        self._progress = time.monotonic()
        self._limit_seconds = max(self._floor_seconds, self._factor * expected_seconds)

    def idle(self) -> None:
        """Note that nothing is to be done: that may take any time."""
        self._limit_seconds = None

    def stalled_seconds(self) -> float | None:
        """Return for how long there was no progress, if that is too long."""
        limit_seconds = self._limit_seconds
        if self._compiling():
            self._progress = time.monotonic()
        stalled = time.monotonic() - self._progress
        return stalled if limit_seconds is not None and stalled > limit_seconds else None

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            stalled = self.stalled_seconds()
            if stalled is not None:
                self._on_stall(stalled)
                return
