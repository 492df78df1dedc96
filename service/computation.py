"""One answer while it is computed: a task of its own fills a buffer, and any number of callers read it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import aclosing

from pixelpod.server.events import Event, Events
from pixelpod.server.readers import Reader, current_reader
from pixelpod.v1 import images_pb2
from service.records import RequestRecord


class Computation:
    """Runs the data plane for one request and buffers what comes, for all who ask for it.

    The data plane is always read at once, so that a slow reader holds up no group. What a reader has yet to take counts
    as its unread bytes. The request goes to a group only once a reader has taken `accepted`.

    Args:
        events: What the data plane yields; closed when the computation is given up.
        fingerprint: Of the request.
        record: Of the call that began the computation; its time is the computation's.
        on_end: Called when the task ended, before any caller learns of it.
        resumable: Whether callers may come back for the rest of the answer: the request has an id.
    """

    def __init__(
        self,
        events: Events,
        fingerprint: bytes,
        record: RequestRecord,
        on_end: Callable[[Computation], None],
        *,
        resumable: bool,
    ) -> None:
        self.fingerprint = fingerprint
        self.record = record
        self.given_up = False
        """Nobody waited for it any more."""
        self._answer_id = uuid.uuid4().hex if resumable else ""
        self._resumable = resumable
        self._events: list[Event] = []
        """All that came but progress."""
        self._progress: images_pb2.GenerateEvent | None = None
        """The latest."""
        self._progress_index = 0
        """How many of the other events came before it."""
        self._steps_done = self._images_computed = False
        self._read = asyncio.Event()
        """Some caller took the first event."""
        self._cursors: set[_Cursor] = set()
        self._on_end = on_end
        self.task = asyncio.create_task(self._run(events), name="computation")
        self.task.add_done_callback(self._end)

    @property
    def events(self) -> tuple[Event, ...] | None:
        """The whole answer without progress; None before the end, and if it ended without one."""
        if not self.task.done() or self.task.cancelled() or self.task.exception() is not None:
            return None
        return tuple(self._events)

    async def read(self, record: RequestRecord) -> Events:
        """Yield the events from the beginning, of progress only the latest, to a caller that may leave at any time.

        When the last caller leaves, the computation is given up, unless it can be resumed and all images are computed
        and on their way: then the rest comes in, so that a broken stream can be taken up.

        Args:
            record: Of the caller.

        Raises:
            DeadlinePassed: if the caller's own time runs out.
            RequestError: that ended the computation.
        """
        cursor = _Cursor(current_reader())
        cursor.count(self._events)
        self._cursors.add(cursor)
        # One timer for the caller, since one for each event would be most of what all this costs.
        loop = asyncio.get_running_loop()
        time_over = loop.call_later(max(0.0, record.remaining_seconds), cursor.run_out_of_time)
        try:
            while True:
                if (progress := self._progress_for(cursor)) is not None:
                    cursor.progress = progress
                    yield progress
                    self._read.set()
                elif cursor.index < len(self._events):
                    event = self._events[cursor.index]
                    yield event
                    self._read.set()
                    cursor.take(event)
                elif self.task.done():
                    break
                elif cursor.out_of_time:
                    raise record.out_of_time()
                else:
                    await cursor.news.wait()
                    cursor.news.clear()
        finally:
            time_over.cancel()
            self._cursors.discard(cursor)
            if not self._cursors and not (self._resumable and self._images_computed):
                self.give_up()
        self.task.result()

    def give_up(self) -> None:
        """Stop the computation, if it still runs."""
        if not self.given_up:  # a second cancel would break off the cleanup of the first
            self.given_up = self.task.cancel()

    async def _run(self, events: Events) -> None:
        async with aclosing(events):
            async for event in events:
                self._add(event)
                # What follows `accepted` takes a place on a group: not before a caller has shown that it reads.
                await self._read.wait()

    def _progress_for(self, cursor: _Cursor) -> images_pb2.GenerateEvent | None:
        """Return the progress that is next for a caller, if one is."""
        if cursor.progress is self._progress or cursor.index < self._progress_index:
            return None
        return self._progress

    def _add(self, event: Event) -> None:
        if isinstance(event, memoryview):
            self._images_computed = self._steps_done
        elif event.HasField("accepted"):
            event.accepted.answer_id = self._answer_id
        elif event.HasField("progress"):
            # A request of several batches sends its first images while it computes the next ones.
            self._steps_done = event.progress.step >= event.progress.steps
            self._progress, self._progress_index = event, len(self._events)
            self._wake()
            return
        self._events.append(event)
        for cursor in self._cursors:
            cursor.count([event])
        self._wake()

    def _wake(self) -> None:
        for cursor in self._cursors:
            cursor.news.set()

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # asyncio reports those that nobody asked for, and by now all callers may have left
        self._on_end(self)
        self._wake()


class _Cursor:
    """How far one caller has read."""

    def __init__(self, reader: Reader) -> None:
        self.index = 0
        """Of the next event."""
        self.progress: images_pb2.GenerateEvent | None = None
        """The last one that the caller got."""
        self.news = asyncio.Event()
        self.out_of_time = False
        self._reader = reader

    def count(self, events: list[Event]) -> None:
        """Count events as unread."""
        for event in events:
            self._reader.add_unread(_image_bytes(event))

    def take(self, event: Event) -> None:
        """Go on to the next event."""
        self.index += 1
        self._reader.take(_image_bytes(event))

    def run_out_of_time(self) -> None:
        """Have the caller told that its time is over."""
        self.out_of_time = True
        self.news.set()


def _image_bytes(event: Event) -> int:
    return len(event) if isinstance(event, memoryview) else 0
