"""One accepted request: what to compute, whether somebody still waits, and its one ending.

The main thread and the encoding pool post what they have made; the endpoint's thread takes it to the caller. Posting
never waits.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pixelpod.server.errors import DeadlinePassed, RequestError
from pixelpod.v1 import group_pb2, images_pb2
from workers.batching import BatchKey


class AcceptedRequest(ABC):
    """A request from its acceptance until its one ending. Its kinds differ in what their callers get, and when.

    Args:
        message: What to compute, and for whom.
        key: What its images have in common with those that they can be computed with.
        deadline: When its time runs out, by time.monotonic().
        predicted_seconds: How long it should compute.
        loop: Where its caller is served.
    """

    def __init__(
        self,
        message: group_pb2.ExecuteRequest,
        key: BatchKey,
        deadline: float,
        predicted_seconds: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.message = message
        self.key = key
        self.images = len(message.parameters.seeds)
        self.taken = 0
        """Images that batches were made of, the first ones."""
        self.deadline = deadline
        self.arrived = time.monotonic()
        self.seconds_left = predicted_seconds
        """Of computing its own images, as expected now; 0 once the last batch is done."""
        self.batch_seconds_left = 0.0
        """Of the batch that holds images of it now."""
        self._loop = loop
        self._abandoned = False
        self._images: deque[tuple[int, bytes]] = deque()
        """Image files on their way to the caller, with their indexes."""
        self._ending: images_pb2.GenerateResponse | RequestError | None = None
        self._news = asyncio.Event()
        """For the caller."""

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits and time is left: by this process's clock, which is the only one that counts."""
        return not self._abandoned and time.monotonic() < self.deadline

    def abandon(self) -> None:
        """Nobody waits any more: computing stops at the next boundary."""
        self._abandoned = True

    @abstractmethod
    def post_progress(self, step: int, steps: int) -> None:
        """Tell that `step` of `steps` denoising steps are done."""

    @abstractmethod
    def post_image(self, index: int, data: bytes) -> None:
        """Give an image file. Images must come in the order of their indexes."""

    def end(self, ending: images_pb2.GenerateResponse | RequestError) -> None:
        """End the request, after everything posted before. Only the first ending counts."""
        self._loop.call_soon_threadsafe(self._take_ending, ending)

    def _take_ending(self, ending: images_pb2.GenerateResponse | RequestError) -> None:
        if self._ending is None:
            self._ending = ending
        self._news.set()

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """End the request when its time runs out."""
        seconds = self.deadline - time.monotonic()
        timer = self._loop.call_later(max(0.0, seconds), lambda: self._take_ending(deadline_passed()))
        try:
            yield
        finally:
            timer.cancel()


@dataclass(frozen=True)
class RequestedImage:
    """One image of a request."""

    request: AcceptedRequest
    index: int
    """Which of the request's images, from 0."""


def deadline_passed() -> DeadlinePassed:
    """Return the error of a request whose time ran out."""
    return DeadlinePassed("the request's time ran out before its images were done", reason="DEADLINE_PASSED")


def deadline_unreachable() -> DeadlinePassed:
    """Return the error of a request that waited until too little time was left to compute it."""
    return DeadlinePassed(
        "the request waited until too little of its time was left to compute it; "
        "set a longer deadline, or ask for fewer steps or images",
        reason="DEADLINE_UNREACHABLE",
    )
