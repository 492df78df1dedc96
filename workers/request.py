"""One accepted Execute call: what to compute, whether somebody still waits, and the way of its events to the caller.

The main thread and the encoding pool post events; the endpoint's thread reads them. Posting never waits: a caller that
reads slowly gets fewer progress events, and its images wait as whole files, as many as the request asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass

from pixelpod.server.errors import DeadlinePassed, RequestError
from pixelpod.server.events import CHUNK_BYTES, Chunk, Events, encode_chunk
from pixelpod.v1 import group_pb2, images_pb2
from workers.batching import BatchKey


class AcceptedRequest:
    """A request from its acceptance until its one ending.

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
        self._progress: images_pb2.Progress | None = None
        self._images: deque[tuple[int, bytes]] = deque()
        self._ending: images_pb2.GenerateResponse | RequestError | None = None
        self._news = asyncio.Event()

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits and time is left: by this process's clock, which is the only one that counts."""
        return not self._abandoned and time.monotonic() < self.deadline

    def abandon(self) -> None:
        """Nobody waits any more: computing stops at the next boundary."""
        self._abandoned = True

    def post_progress(self, step: int, steps: int) -> None:
        """Tell the caller that `step` of `steps` denoising steps are done. A newer progress replaces an unread one."""
        progress = images_pb2.Progress(step=step, steps=steps, seconds_left=self.seconds_left)
        self._loop.call_soon_threadsafe(self._take_progress, progress)

    def post_image(self, index: int, data: bytes) -> None:
        """Give the caller an image file. Images must come in the order of their indexes."""
        self._loop.call_soon_threadsafe(self._take_image, index, data)

    def end(self, ending: images_pb2.GenerateResponse | RequestError) -> None:
        """End the request, after everything posted before. Only the first ending counts."""
        self._loop.call_soon_threadsafe(self._take_ending, ending)

    async def events(self) -> Events:
        """Yield the events as they come, in chunks, until done.

        Raises:
            RequestError: if the request ends without its images, also because its deadline passed.
        """
        while True:
            await self._wait_for_news()
            if self._progress is not None:
                progress, self._progress = self._progress, None
                yield images_pb2.GenerateEvent(progress=progress)
            while self._images:
                index, data = self._images.popleft()
                file = memoryview(data)
                for offset in range(0, len(file), CHUNK_BYTES):
                    yield encode_chunk(Chunk(index, offset, file[offset : offset + CHUNK_BYTES]))
            if isinstance(self._ending, RequestError):
                raise self._ending
            if self._ending is not None:
                yield images_pb2.GenerateEvent(done=self._ending)
                return

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(self.deadline - time.monotonic()):
                await self._news.wait()
        except TimeoutError:
            raise deadline_passed() from None
        self._news.clear()

    def _take_progress(self, progress: images_pb2.Progress) -> None:
        self._progress = progress
        self._news.set()

    def _take_image(self, index: int, data: bytes) -> None:
        self._images.append((index, data))
        self._news.set()

    def _take_ending(self, ending: images_pb2.GenerateResponse | RequestError) -> None:
        if self._ending is None:
            self._ending = ending
        self._news.set()


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
