"""Answers kept for a while after their end, within a budget of bytes, for callers that repeat a request id."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pixelpod.server.events import Event, size_bytes

Key: TypeAlias = tuple[str, str]
"""Who asked, and the request id."""


@dataclass(frozen=True)
class KeptAnswer:
    """One answer, as its callers got it."""

    fingerprint: bytes
    """Of the request; the request itself is not kept."""
    model: str
    """The model that answered."""
    events: tuple[Event, ...]
    """Accepted, the image chunks, done."""

    @property
    def size_bytes(self) -> int:
        """What it holds in memory, roughly: its events on the wire."""
        return sum(map(size_bytes, self.events))


class KeptAnswers:
    """Holds answers until their time is over or newer ones need the room.

    Args:
        seconds: How long an answer is kept.
        limit_bytes: How much all answers may hold. The oldest go first; an answer over the limit is not kept.
        clock: Returns seconds that only grow.
    """

    def __init__(self, seconds: float, limit_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.size_bytes = 0
        """What all kept answers hold."""
        self._seconds = seconds
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._answers: OrderedDict[Key, tuple[float, int, KeptAnswer]] = OrderedDict()
        """End of the window, bytes and answer, the oldest first."""

    def keep(self, key: Key, answer: KeptAnswer) -> None:
        """Keep `answer` from now on, in place of an older one with the same key."""
        size_bytes = answer.size_bytes
        if key in self._answers:
            self._forget(key)
        if size_bytes > self._limit_bytes:
            return
        self._answers[key] = self._clock() + self._seconds, size_bytes, answer
        self.size_bytes += size_bytes
        while self.size_bytes > self._limit_bytes:
            self._forget(next(iter(self._answers)))

    def find(self, key: Key) -> KeptAnswer | None:
        """Return the answer kept under `key`, if its time is not over."""
        self.forget_expired()
        _, _, answer = self._answers.get(key, (0.0, 0, None))
        return answer

    def forget_expired(self) -> None:
        """Free the answers whose time is over."""
        now = self._clock()
        while self._answers:
            key, (expires, _, _) = next(iter(self._answers.items()))
            if expires > now:
                return
            self._forget(key)

    def _forget(self, key: Key) -> None:
        _, size_bytes, _ = self._answers.pop(key)
        self.size_bytes -= size_bytes
