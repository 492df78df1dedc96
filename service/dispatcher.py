"""The dispatcher: lets requests wait in their model's queue until a group has room, and picks the group.

All of it runs on the event loop and only looks at what is known already, so that a request is admitted or refused at
once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pixelpod.server.errors import DeadlinePassed, Overloaded, RequestError
from service.admission import AdmissionQueue, Ticket
from service.forecast import Forecast, forecast, least_seconds
from service.group_connection import GroupConnection
from service.load import GroupLoad, Sent
from service.metrics import FrontendMetrics
from service.router import choose_group, not_ready, ready_groups, suits, warm_groups

MARGIN = 1.1
"""A request is admitted if this many times its predicted seconds fit in its time: predictions are means."""

LEAST_RETRY_SECONDS = 0.1


@dataclass(frozen=True)
class Place:
    """Room on a group that is kept for one request."""

    group: GroupConnection
    epoch: int
    """The group's, when the room was given."""
    sent: Sent


class Dispatcher:
    """Holds a queue for each model.

    Args:
        groups: All groups, as they are at each moment.
        metrics: Told of the queues.
        queue_limit: Requests of a model that may wait.
        no_group_seconds: How long a waiting request outlives the last group that could compute it.
    """

    def __init__(
        self,
        groups: Iterable[GroupConnection],
        metrics: FrontendMetrics,
        queue_limit: int,
        no_group_seconds: float,
    ) -> None:
        self._groups = groups
        self._metrics = metrics
        self._queue_limit = queue_limit
        self._no_group_seconds = no_group_seconds
        self._queues: dict[str, AdmissionQueue] = {}
        self._waiting: dict[Ticket, asyncio.Future[Place]] = {}
        self._deserted: dict[Ticket, asyncio.TimerHandle] = {}
        """Waiting requests that no group is there for: when they end."""

    def expect(self, ticket: Ticket) -> Forecast:
        """Return what is expected of a new request, or refuse it at once. It does not wait yet.

        Raises:
            Unavailable: if no group can serve it.
            DeadlinePassed: if it takes longer than its time, even by itself.
            Overloaded: if it would end too late, or too many wait.
        """
        loads = self._loads(ticket)
        queue = self._queue(ticket.model)
        expected = forecast(ticket, queue.before(ticket), loads)
        seconds_left = ticket.deadline - time.monotonic()
        if least_seconds(ticket, loads) > seconds_left:
            raise _too_short(expected.own_seconds, seconds_left)
        if expected.start_seconds > 0 and expected.finish_seconds * MARGIN > seconds_left:
            raise _too_late(expected.finish_seconds, seconds_left)
        if queue.full and self._displaceable(ticket) is None:
            raise self._queue_full(ticket)
        return expected

    @contextmanager
    def queued(self, ticket: Ticket) -> Iterator[None]:
        """Let a request wait that `expect` did not refuse; afterwards it has left.

        Raises:
            Overloaded: if too many wait.
        """
        self._make_room(ticket)
        self.wait_again(ticket)
        try:
            yield
        finally:
            self._leave(ticket)

    def ahead(self, ticket: Ticket) -> int:
        """Return how many requests are before one that does not wait yet: in the queue, and on the least busy group."""
        groups = [group.load.requests_ahead for group in self._groups if suits(group, ticket)]
        return self._queue(ticket.model).position(ticket) + min(groups, default=0)

    async def place(self, ticket: Ticket) -> Place:
        """Wait until a group has room for an admitted request. The room is kept for it until it leaves.

        Raises:
            DeadlinePassed: once too little time is left to compute it.
            Overloaded: if the request had to make room for a more urgent one.
            Unavailable: if no group has been there for it for a while, or the frontend stops.
        """
        waiting = self._waiting[ticket]
        if waiting.done():
            return waiting.result()
        suitable = [group.load for group in self._groups if suits(group, ticket)]
        latest_start = ticket.deadline - least_seconds(ticket, suitable)
        try:
            async with asyncio.timeout(latest_start - time.monotonic()):
                return await waiting
        except TimeoutError:
            raise _waited_too_long() from None

    def wait_again(self, ticket: Ticket) -> None:
        """Let an admitted request wait for another place than the one it had."""
        self._give_back(ticket)
        self._waiting[ticket] = asyncio.get_running_loop().create_future()
        self._queue(ticket.model).add(ticket)
        self.dispatch(ticket.model, self._groups)
        if not self._waiting[ticket].done():
            self._watch_desertion(ticket)

    def dispatch(self, model: str, groups: Iterable[GroupConnection]) -> None:
        """Give the model's waiting requests the room that these groups have now, the most urgent ones first."""
        queue = self._queue(model)
        if queue:
            able = [group for group in groups if group.serves(model) and group.load.room > 0]
            for ticket in queue:
                if not able:
                    break
                group = choose_group(able, ticket)
                if group is not None:
                    queue.remove(ticket)
                    self._assign(ticket, group)
                    able = [group for group in able if group.load.room > 0]
        self._metrics.waiting.labels(model).set(len(queue))

    def group_changed(self, group: GroupConnection) -> None:
        """Use the room of a group that sent a status."""
        if group.model is not None:
            self.dispatch(group.model.name, [group])

    def groups_changed(self) -> None:
        """Look at all groups again: some came or went."""
        for model, queue in self._queues.items():
            for ticket in queue:
                self._watch_desertion(ticket)
            self.dispatch(model, self._groups)

    def end_all(self, error: RequestError) -> None:
        """End every waiting request with `error`."""
        for queue in self._queues.values():
            for ticket in queue:
                self._end(queue, ticket, error)

    def _queue(self, model: str) -> AdmissionQueue:
        return self._queues.setdefault(model, AdmissionQueue(self._queue_limit))

    def _loads(self, ticket: Ticket) -> list[GroupLoad]:
        """Return the loads of the groups that could compute the request; raise `Unavailable` if there is none."""
        ready = [group for group in ready_groups(self._groups, ticket.model) if ticket.takes_revision(group.revision)]
        return [group.load for group in warm_groups(ready, ticket.parameters)]

    def _assign(self, ticket: Ticket, group: GroupConnection) -> None:
        self._forget_desertion(ticket)
        waiting = self._waiting[ticket]
        if not waiting.done():  # else its caller is just about to leave
            waiting.set_result(Place(group, group.epoch, group.load.send(ticket)))

    def _leave(self, ticket: Ticket) -> None:
        """Forget a request, however it ended."""
        queue = self._queue(ticket.model)
        queue.remove(ticket)
        self._forget_desertion(ticket)
        self._give_back(ticket)
        del self._waiting[ticket]
        self._metrics.waiting.labels(ticket.model).set(len(queue))

    def _give_back(self, ticket: Ticket) -> None:
        """Free the room that was kept for the request, if any was."""
        waiting = self._waiting.get(ticket)
        if waiting is None or not waiting.done() or waiting.cancelled() or waiting.exception() is not None:
            return
        place = waiting.result()
        place.group.load.forget(place.sent)
        self.group_changed(place.group)

    def _make_room(self, ticket: Ticket) -> None:
        """Have a place in the queue for a new request, or raise `Overloaded`."""
        queue = self._queue(ticket.model)
        if queue.full:
            displaced = self._displaceable(ticket)
            if displaced is None:
                raise self._queue_full(ticket)
            self._end(queue, displaced, _displaced())

    def _displaceable(self, ticket: Ticket) -> Ticket | None:
        """Return the least urgent waiting request if `ticket` is more urgent, and it can't be done in time any more."""
        queue = self._queue(ticket.model)
        last = queue.last
        if last is None or ticket.order >= last.order:
            return None
        finish_seconds = forecast(last, queue.before(last), self._loads(ticket)).finish_seconds
        return last if finish_seconds > last.deadline - time.monotonic() else None

    def _queue_full(self, ticket: Ticket) -> Overloaded:
        queue = self._queue(ticket.model)
        start = forecast(ticket, list(queue), self._loads(ticket)).start_seconds
        return Overloaded(
            f"{len(queue)} requests of the model wait already, as many as may; try again after the delay",
            reason="QUEUE_FULL",
            retry_after_seconds=max(LEAST_RETRY_SECONDS, start / len(queue)),
        )

    def _watch_desertion(self, ticket: Ticket) -> None:
        """Have a waiting request ended once there has been no group for it for a while."""
        deserted = not any(suits(group, ticket) for group in self._groups)
        if deserted and ticket not in self._deserted:
            loop = asyncio.get_running_loop()
            self._deserted[ticket] = loop.call_later(self._no_group_seconds, self._desert, ticket)
        elif not deserted:
            self._forget_desertion(ticket)

    def _forget_desertion(self, ticket: Ticket) -> None:
        timer = self._deserted.pop(ticket, None)
        if timer is not None:
            timer.cancel()

    def _desert(self, ticket: Ticket) -> None:
        self._end(self._queue(ticket.model), ticket, not_ready(self._groups, ticket.model))

    def _end(self, queue: AdmissionQueue, ticket: Ticket, error: RequestError) -> None:
        queue.remove(ticket)
        self._forget_desertion(ticket)
        waiting = self._waiting[ticket]
        if not waiting.done():
            waiting.set_exception(error)


def _too_late(finish_seconds: float, seconds_left: float) -> Overloaded:
    return Overloaded(
        f"the request would be done in {finish_seconds:.3g} s, later than its deadline in {seconds_left:.3g} s allows; "
        "try again after the delay, or set a longer deadline",
        reason="OVERLOADED",
        retry_after_seconds=max(LEAST_RETRY_SECONDS, finish_seconds * MARGIN - seconds_left),
    )


def _too_short(own_seconds: float, seconds_left: float) -> DeadlinePassed:
    return DeadlinePassed(
        f"the request takes about {own_seconds:.3g} s, and {seconds_left:.3g} s are left until its deadline; "
        "set a longer deadline, or ask for fewer steps or images",
        reason="DEADLINE_TOO_SHORT",
    )


def _waited_too_long() -> DeadlinePassed:
    return DeadlinePassed(
        "the request waited until too little of its time was left to compute it; "
        "set a longer deadline, or ask for fewer steps or images",
        reason="DEADLINE_UNREACHABLE",
    )


def _displaced() -> Overloaded:
    return Overloaded(
        "the request made room for a more urgent one, since it could not be done in time any more; "
        "try again with a longer deadline",
        reason="DISPLACED",
        retry_after_seconds=LEAST_RETRY_SECONDS,
    )
