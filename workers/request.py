"""One accepted Execute call: what to compute, whether somebody still waits, and the way of its events to the caller.

The main thread and the encoding pool post events; the endpoint's thread reads them. Posting never waits: a caller that
reads slowly gets fewer progress events, and its images wait as whole files, as many as the request asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from pixelpod.server.errors import DeadlinePassed, RequestError
from pixelpod.server.events import CHUNK_BYTES, Chunk, join
from pixelpod.v1 import group_pb2, images_pb2
from workers.batching import BatchKey

GATHER_SECONDS = 0.01
"""So long a progress waits for what comes next, to travel with it: a message costs both sides more than many a step."""


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
        self._accepted: images_pb2.Accepted | None = None
        self._progress: images_pb2.Progress | None = None
        self._images: deque[tuple[int, bytes]] = deque()
        self._ending: images_pb2.GenerateResponse | RequestError | None = None
        self._news = asyncio.Event()
        self._gathering = False
        """News will be told in a moment."""

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits and time is left: by this process's clock, which is the only one that counts."""
        return not self._abandoned and time.monotonic() < self.deadline

    def abandon(self) -> None:
        """Nobody waits any more: computing stops at the next boundary."""
        self._abandoned = True

    def tell_accepted(self, position: int, predicted_seconds: float) -> None:
        """Tell the caller that the group has the request. Only the endpoint's thread calls this."""
        self._accepted = images_pb2.Accepted(
            request_id=self.message.request_id, position=position, predicted_seconds=predicted_seconds
        )
        if position > 0:
            self._news.set()
        else:  # computing begins, which is news to travel with
            self._gather()

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

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the events as they come, until done: encoded ExecuteEvents.

        Raises:
            RequestError: if the request ends without its images, also because its deadline passed.
        """
        while True:
            await self._wait_for_news()
            ending = self._ending  # one that comes while messages are on their way is news of its own
            for message in join(self._unread(ending)):
                yield message
            if isinstance(ending, RequestError):
                raise ending
            if ending is not None:
                return

    def _unread(
        self, ending: images_pb2.GenerateResponse | RequestError | None
    ) -> Iterator[group_pb2.ExecuteEvents | Chunk]:
        if self._accepted is not None:
            accepted, self._accepted = self._accepted, None
            yield group_pb2.ExecuteEvents(accepted=accepted)
        if self._progress is not None:
            progress, self._progress = self._progress, None
            yield group_pb2.ExecuteEvents(progress=progress)
        while self._images:
            index, data = self._images.popleft()
            file = memoryview(data)
            for offset in range(0, len(file), CHUNK_BYTES):
                yield Chunk(index, offset, file[offset : offset + CHUNK_BYTES])
        if isinstance(ending, images_pb2.GenerateResponse):
            yield group_pb2.ExecuteEvents(done=ending)

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(self.deadline - time.monotonic()):
                await self._news.wait()
        except TimeoutError:
            raise deadline_passed() from None
        self._news.clear()

    def _gather(self) -> None:
        """Have what is there told in a moment, or with what comes before."""
        if not self._gathering:
            self._gathering = True
            self._loop.call_later(GATHER_SECONDS, self._tell_gathered)

    def _tell_gathered(self) -> None:
        self._gathering = False
        self._news.set()

    def _take_progress(self, progress: images_pb2.Progress) -> None:
        self._progress = progress
        self._gather()

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
