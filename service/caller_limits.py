"""How much each caller may ask of this frontend: requests at once, and images a minute."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from pixelpod.server.callers import Caller
from pixelpod.server.errors import InvalidRequest, Overloaded

RETRY_BUSY_SECONDS = 1.0
"""A caller that has too many requests in flight may try again after this long."""

_MINUTE_SECONDS = 60.0
_ROUNDING_SECONDS = 1e-6


class CallerLimits:
    """Counts what callers have in flight and asked for, as long as it matters.

    Args:
        clock: Tells seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._whole_at: dict[str, float] = {}
        """When a caller's allowance of images is whole again: a token bucket in one number (GCRA, ITU-T I.371)."""

    def enter(self, caller: Caller) -> None:
        """Count a request of `caller` until `leave`.

        Raises:
            Overloaded: if it has as many as it may.
        """
        limit, running = caller.max_concurrent_requests, self._running[caller.name]
        if limit is not None and running >= limit:
            raise Overloaded(
                f"{caller.name} has {running} requests in flight and may have {limit}; wait until one ends, and its "
                "answer is read",
                reason="CALLER_BUSY",
                retry_after_seconds=RETRY_BUSY_SECONDS,
            )
        self._running[caller.name] += 1

    def leave(self, caller: Caller) -> None:
        """Note that a request of `caller` ended, and the last byte of its answer is gone."""
        self._running[caller.name] -= 1
        if not self._running[caller.name]:
            del self._running[caller.name]

    def take_images(self, caller: Caller, count: int) -> None:
        """Take `count` images from what `caller` may ask for this minute.

        Raises:
            InvalidRequest: if it may never ask for so many at once.
            Overloaded: if it must wait; nothing is taken then.
        """
        limit = caller.images_per_minute
        if limit is None:
            return
        if count > limit:
            raise InvalidRequest(
                "num_images",
                f"num_images {count} is more than the {limit} images that {caller.name} may ask for a minute",
            )
        now = self._clock()
        self._whole_at = {name: whole_at for name, whole_at in self._whole_at.items() if whole_at > now}
        whole_at = self._whole_at.get(caller.name, now) + count * _MINUTE_SECONDS / limit
        wait_seconds = whole_at - now - _MINUTE_SECONDS
        if wait_seconds > _ROUNDING_SECONDS:
            raise Overloaded(
                f"{caller.name} may ask for {limit} images a minute, and asked for more; try again after the delay",
                reason="CALLER_RATE",
                retry_after_seconds=wait_seconds,
            )
        self._whole_at[caller.name] = whole_at
