"""Runs an admitted request on groups: on one, and once more on another where the first was lost."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from pixelpod.server.errors import LikelyCause, Overloaded, RequestError, Unavailable
from pixelpod.server.events import Event, Events, split
from pixelpod.v1 import group_pb2
from service.admission import Ticket
from service.dispatcher import Dispatcher, Place
from service.group_connection import REASON_LOST, RETRY_LOST_SECONDS
from service.metrics import FrontendMetrics

logger = logging.getLogger(__name__)

REFUSED = frozenset({"QUEUE_FULL", "GROUP_NOT_READY", "GROUP_DRAINING", "BUCKET_NOT_WARM"})
"""Reasons of a group that did not compute the request: another one will."""

GROUPS_LOST = 2
"""A request that loses so many groups ends."""

LOST = frozenset({REASON_LOST, "WORLD_BROKEN"})
"""Reasons of a request whose group broke."""


class Attempts:
    """The attempts at one request.

    Args:
        execution: What groups are sent.
        ticket: Its place in the queue; admitted.
        dispatcher: Finds groups.
        metrics: Told of what is sent again.
    """

    def __init__(
        self, execution: group_pb2.ExecuteRequest, ticket: Ticket, dispatcher: Dispatcher, metrics: FrontendMetrics
    ) -> None:
        self._execution = execution
        self._ticket = ticket
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._relayed: list[memoryview] = []
        """Image chunks that the caller got. Another group must send the same before it can go on."""
        self._losses = 0
        self._losses_computing = 0
        self._loss: RequestError | None = None
        """The last one."""

    async def answer(self, limit_bytes: int) -> bytes:
        """Return the group's answer, an encoded GenerateResponse of at most `limit_bytes`.

        Raises:
            RequestError: that ends the request.
        """
        self._execution.answer_limit_bytes = limit_bytes
        while True:
            place = await self._find_place()
            with self._another_follows(place):
                return await place.group.execute(self._execution, self._ticket.deadline - time.monotonic())

    async def events(self) -> Events:
        """Yield the group's events: progress, image chunks and done. Closing the iterator stops the computation.

        Raises:
            RequestError: that ends the request.
        """
        while True:
            place = await self._find_place()
            with self._another_follows(place):
                async with aclosing(self._run(place)) as events:
                    async for event in events:
                        yield event
                return

    async def _find_place(self) -> Place:
        """Wait for a place; if there is none for a request that lost its group, that loss is what ends it."""
        try:
            place = await self._dispatcher.place(self._ticket)
        except Unavailable as error:
            raise self._loss or error from None
        timings = self._execution.timings
        timings.queue_seconds = timings.total_seconds = time.monotonic() - self._ticket.arrived
        return place

    async def _run(self, place: Place) -> AsyncGenerator[Event, None]:
        """Yield what one group sends, without what the caller has already."""
        repeated = iter(tuple(self._relayed))
        seconds_left = self._ticket.deadline - time.monotonic()
        async with aclosing(place.group.execute_stream(self._execution, seconds_left)) as messages:
            async for message in messages:
                for event in split(message):
                    if isinstance(event, memoryview):
                        known = next(repeated, None)
                        if known is None:
                            self._relayed.append(event)
                            yield event
                        elif known != event:
                            raise _another_image(place)
                    else:
                        yield event
                        if event.HasField("done"):
                            return
        raise place.group.lost()

    @contextmanager
    def _another_follows(self, place: Place) -> Iterator[None]:
        """Have the request wait for another place after a group that did not compute it; raise what else ends it."""
        try:
            yield
        except (Unavailable, Overloaded) as error:
            self._go_on_after(error, place)
            self._dispatcher.wait_again(self._ticket)

    def _go_on_after(self, error: RequestError, place: Place) -> None:
        """Note why another group follows, or raise `error`."""
        if error.reason in REFUSED:
            place.group.load.refuse()
        elif error.reason in LOST:
            self._lose(error, place)
        else:
            raise error
        self._metrics.sent_again.labels(self._ticket.model, "refused" if error.reason in REFUSED else "lost").inc()
        logger.info(
            "sent to another group",
            extra={"request_id": self._execution.request_id, "group": place.group.name, "reason": error.reason},
        )

    def _lose(self, error: RequestError, place: Place) -> None:
        """Note that a group broke with the request in flight; raise what ends it if that was the second one."""
        self._losses += 1
        self._loss = error
        self._losses_computing += place.sent.computes
        if self._losses == GROUPS_LOST:
            if self._losses_computing == GROUPS_LOST:
                raise _likely_cause() from error
            raise error
        self._ticket.shunned.add((place.group.address, place.epoch))
        # If it was the cause, only itself is to suffer the next time.
        self._execution.alone = place.sent.computes


def _another_image(place: Place) -> Unavailable:
    return Unavailable(
        f"the group was lost while it sent the images, and group {place.group.name} made other ones; try again",
        reason="GROUP_CHANGED",
        retry_after_seconds=RETRY_LOST_SECONDS,
    )


def _likely_cause() -> LikelyCause:
    return LikelyCause(
        f"{GROUPS_LOST} groups broke while they computed this request, so it is not tried again; "
        "the groups' logs may tell why: look there before you send it once more",
        reason="POISON_REQUEST",
    )
