"""An accepted ExecuteStream call: its caller gets events as they come.

A caller that reads slowly gets fewer progress events, and its images wait as whole files, as many as it asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from pixelpod.server.errors import RequestError
from pixelpod.server.events import CHUNK_BYTES, Chunk, join
from pixelpod.v1 import group_pb2, images_pb2
from workers.request import AcceptedRequest

GATHER_SECONDS = 0.01
"""So long a progress waits for what comes next, to travel with it: a message costs both sides more than many a step."""


class StreamedRequest(AcceptedRequest):
    """A request whose caller follows it."""

    _progress: images_pb2.Progress | None = None
    _gathering = False
    """News will be told in a moment."""

    def post_progress(self, step: int, steps: int) -> None:
        """Tell that `step` of `steps` denoising steps are done. A newer progress replaces an unread one."""
        progress = images_pb2.Progress(step=step, steps=steps, seconds_left=self.seconds_left)
        self._loop.call_soon_threadsafe(self._take_progress, progress)

    def post_image(self, index: int, data: bytes) -> None:
        """Give the caller an image file. Images must come in the order of their indexes."""
        self._loop.call_soon_threadsafe(self._take_image, index, data)

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the events as they come, until done: encoded ExecuteEvents.

        Raises:
            RequestError: if the request ends without its images, also because its deadline passed.
        """
        with self._in_time():
            while True:
                await self._news.wait()
                self._news.clear()
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

    def _take_progress(self, progress: images_pb2.Progress) -> None:
        """Have it told in a moment, or with what comes before."""
        self._progress = progress
        if not self._gathering:
            self._gathering = True
            self._loop.call_later(GATHER_SECONDS, self._tell_gathered)

    def _tell_gathered(self) -> None:
        self._gathering = False
        self._news.set()

    def _take_image(self, index: int, data: bytes) -> None:
        self._images.append((index, data))
        self._news.set()
