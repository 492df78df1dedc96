"""When a stream that broke is taken up again, and with which request."""

from __future__ import annotations

import random
import time

from pixelpod.client.assembly import Assembly
from pixelpod.client.channel import FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, PAUSE_FACTOR
from pixelpod.client.errors import PixelpodError, UnavailableError
from pixelpod.v1 import images_pb2

MOST_RESUMPTIONS = 5
"""How often one request's stream is taken up again."""

JITTER = 0.2
"""Pauses are up to this part shorter or longer, as gRPC's own, so that callers do not come back all at once."""


class Resumption:
    """The calls that one request makes, until its answer is whole.

    Args:
        request: The first call's; the next ones also tell what arrived.
        deadline_seconds: For all calls and pauses together; None for no limit.
        assembly: What arrived.
    """

    def __init__(self, request: images_pb2.GenerateRequest, deadline_seconds: float | None, assembly: Assembly) -> None:
        self._request = request
        self._assembly = assembly
        self._deadline = None if deadline_seconds is None else time.monotonic() + deadline_seconds
        self._resumed = 0

    @property
    def seconds_left(self) -> float | None:
        """The time that the next call has; None for no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def request(self) -> images_pb2.GenerateRequest:
        """Return what to ask for in the next call."""
        request = images_pb2.GenerateRequest()
        request.CopyFrom(self._request)
        if point := self._assembly.resume_point():
            request.resume_from.CopyFrom(point)
        return request

    def pause_seconds(self, error: PixelpodError) -> float:
        """Return how long to wait before the next call, after one that ended with `error`.

        Raises:
            PixelpodError: `error` itself, if there is to be no next call: another try can't help or comes too late,
                there were enough, or no answer began (then gRPC itself tried again).
        """
        if not isinstance(error, UnavailableError) or not self._assembly.began or self._resumed == MOST_RESUMPTIONS:
            raise error
        pause_seconds = error.retry_after_seconds
        if pause_seconds is None:
            growing = FIRST_PAUSE_SECONDS * PAUSE_FACTOR**self._resumed
            pause_seconds = min(growing, LAST_PAUSE_SECONDS) * random.uniform(1 - JITTER, 1 + JITTER)
        left = self.seconds_left
        if left is not None and pause_seconds >= left:
            raise error
        self._resumed += 1
        return pause_seconds
