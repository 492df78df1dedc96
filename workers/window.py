"""How long a batch that is not full waits for more images: only while that pays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workers.batching import BatchKey

if TYPE_CHECKING:
    from workers.request import AcceptedRequest


class BatchWindow:
    """Tells until when to wait for mates.

    They are expected where the batch before was of the same key, just ended, and had more requests: callers that send
    one request after the other are about to send again. A lone caller never waits.

    Args:
        seconds: Longest wait, counted from the arrival of the oldest request.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._key: BatchKey | None = None
        self._requests = 0
        self._ended = 0.0

    def batch_ended(self, key: BatchKey, requests: int) -> None:
        """Note that a batch with images of so many requests ended now."""
        self._key, self._requests, self._ended = key, requests, time.monotonic()

    def pays_until(self, requests: Sequence[AcceptedRequest]) -> float:
        """Return the monotonic time at which a batch of these requests, the oldest first, starts as it is.

        Never so late that one of them would miss its deadline.
        """
        oldest = requests[0]
        expects_more = oldest.key == self._key and len(requests) < self._requests
        if not expects_more or oldest.arrived > self._ended + self._seconds:
            return oldest.arrived
        latest_starts = [request.deadline - request.seconds_left for request in requests]
        return min(oldest.arrived + self._seconds, *latest_starts)
