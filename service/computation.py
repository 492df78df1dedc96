"""One answer while it is computed: a task of its own feeds it, and any number of callers read it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import aclosing
from typing import TypeAlias

from pixelpod.server.errors import DeadlinePassed
from pixelpod.server.events import Event, Events
from service.records import RequestRecord

Unread: TypeAlias = asyncio.Queue[Event | DeadlinePassed | None]
"""What a caller has not read yet; None is the end of the computation, an error that of the caller's own time."""


class Computation:
    """Runs the data plane for one request and records what comes, for all who ask for it.

    Image chunks are recorded as they are, so that a slow caller costs memory only within the size of the one answer,
    which the model's max_pixels bounds.

    Args:
        events: What the data plane yields; closed when the computation is given up.
        fingerprint: Of the request.
        record: Of the call that began the computation; its time is the computation's.
        on_end: Called when the task ended, before any caller learns of it.
    """

    def __init__(
        self, events: Events, fingerprint: bytes, record: RequestRecord, on_end: Callable[[Computation], None]
    ) -> None:
        self.fingerprint = fingerprint
        self.record = record
        self.given_up = False
        """Nobody waited for it any more."""
        self._answer_id = uuid.uuid4().hex
        self._events: list[Event] = []
        """What a caller that comes now has to read: of progress only the latest."""
        self._steps_done = self._images_computed = False
        self._callers: set[Unread] = set()
        self._on_end = on_end
        self.task = asyncio.create_task(self._run(events), name="computation")
        self.task.add_done_callback(self._end)

    @property
    def events(self) -> tuple[Event, ...] | None:
        """The whole answer without progress; None before the end, and if it ended without one."""
        if not self.task.done() or self.task.cancelled() or self.task.exception() is not None:
            return None
        return tuple(event for event in self._events if not _is_progress(event))

    async def read(self, record: RequestRecord) -> Events:
        """Yield all events from the beginning, to a caller that may leave at any time.

        When the last caller leaves, the computation is given up, unless all images are computed and on their way: then
        the rest comes in, so that a broken stream can be taken up.

        Args:
            record: Of the caller.

        Raises:
            DeadlinePassed: if the caller's own time runs out.
            RequestError: that ended the computation.
        """
        unread: Unread = asyncio.Queue()
        for event in self._events:
            unread.put_nowait(event)
        self._callers.add(unread)
        # One timer for the caller, since one for each event would be most of what all this costs.
        time_over = asyncio.get_running_loop().call_later(
            max(0.0, record.remaining_seconds), lambda: unread.put_nowait(record.out_of_time())
        )
        try:
            while (read := await unread.get()) is not None:
                if isinstance(read, DeadlinePassed):
                    raise read
                yield read
        finally:
            time_over.cancel()
            self._callers.discard(unread)
            if not self._callers and not self._images_computed:
                self.give_up()
        self.task.result()

    def give_up(self) -> None:
        """Stop the computation, if it still runs."""
        if not self.given_up:  # a second cancel would break off the cleanup of the first
            self.given_up = self.task.cancel()

    async def _run(self, events: Events) -> None:
        async with aclosing(events):
            async for event in events:
                self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, memoryview):
            self._images_computed = self._steps_done
        elif event.HasField("accepted"):
            event.accepted.answer_id = self._answer_id
        elif event.HasField("progress"):
            # A request of several batches sends its first images while it computes the next ones.
            self._steps_done = event.progress.step >= event.progress.steps
            if self._events and _is_progress(self._events[-1]):
                self._events.pop()
        self._events.append(event)
        for unread in self._callers:
            unread.put_nowait(event)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._on_end(self)
        for unread in self._callers:
            unread.put_nowait(None)


def _is_progress(event: Event) -> bool:
    return not isinstance(event, memoryview) and event.HasField("progress")
