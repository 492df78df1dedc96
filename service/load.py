"""What a frontend knows of a group's load: the group's last status, and what this frontend sent since."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from pixelpod.v1 import group_pb2
from service.admission import Ticket
from service.batch_key import BatchKey
from service.durations import Durations


@dataclass(eq=False)
class Sent:
    """A request that was sent to the group."""

    request_id: str
    key: BatchKey
    images: int
    share_seconds: float
    """Of the device."""
    accepted: bool = False
    """Whether a status told of the request: they count it from then on."""
    computes: bool = False
    """Whether a status told that computing it began, or comes next."""


class GroupLoad:
    """The load of one group.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.status = group_pb2.GroupStatus()
        """The last one."""
        self.durations = Durations(self.status)
        self.room = 0
        """Images that the group takes now; below 1 none."""
        self.requests_ahead = 0
        """Requests in flight there."""
        self._clock = clock
        self._reported_until = 0.0
        """When what the group reported is done."""
        self._reported_images: Counter[BatchKey] = Counter()
        self._waiting_images: Counter[BatchKey] = Counter()
        """What the group reported to wait, and what was sent since."""
        self._sent: dict[Sent, None] = {}
        """All that did not end yet, in the order of sending."""
        self._sent_seconds = 0.0
        self._refuses = False

    def take(self, status: group_pb2.GroupStatus) -> None:
        """Note a status that came now."""
        if status.batch_seconds != self.status.batch_seconds or status.model != self.status.model:
            self.durations = Durations(status)
        self.status = status
        self._reported_until = self._clock() + status.backlog_seconds
        self._reported_images = Counter(
            {BatchKey.of_waiting(waiting): waiting.images for waiting in status.waiting_images}
        )
        self._refuses = False
        if self._sent:
            self._recognize(frozenset(status.waiting), frozenset(status.computing))
        self._count()

    def lose(self) -> None:
        """Note that the group is gone: nothing it said counts any more, but its name."""
        self.take(group_pb2.GroupStatus(group=self.status.group))

    def refuse(self) -> None:
        """Note that the group refused a request: it takes none until its next status."""
        self._refuses = True
        self._count()

    def send(self, ticket: Ticket) -> Sent:
        """Count a request as sent there, until `forget` or a status that counts it."""
        parameters = ticket.parameters
        share_seconds = self.durations.share_seconds(parameters)
        sent = Sent(ticket.request_id, ticket.batch_key, parameters.num_images, share_seconds)
        self._sent[sent] = None
        self._count()
        return sent

    def forget(self, sent: Sent) -> None:
        """Note that a request ended, or was never sent."""
        self._sent.pop(sent, None)
        self._count()

    @property
    def backlog_seconds(self) -> float:
        """Seconds of work before a new request: what the group reported less the time since, and what was sent."""
        return max(0.0, self._reported_until - self._clock()) + self._sent_seconds

    def own_seconds(self, ticket: Ticket) -> float:
        """Return how much later than its backlog the group would be done with a new request.

        0 where places are left in a batch that waits already: the request is done with what is there.
        """
        waiting = self._waiting_images.get(ticket.batch_key, 0)
        if waiting and -waiting % self.durations.largest_batch(ticket.size) >= ticket.parameters.num_images:
            return 0.0
        return self.durations.own_seconds(ticket.parameters)

    def _recognize(self, waiting: Collection[str], computing: Collection[str]) -> None:
        """Note which of the requests sent there a status tells of."""
        for sent in self._sent:
            sent.computes = sent.computes or sent.request_id in computing
            sent.accepted = sent.accepted or sent.computes or sent.request_id in waiting

    def _count(self) -> None:
        """Work out what only changes with a status or what is sent: routers look at it far more often."""
        on_the_way = [sent for sent in self._sent if not sent.accepted]
        images = sum(sent.images for sent in on_the_way)
        self.room = 0 if self._refuses else self.status.free_slots - images
        self.requests_ahead = self.status.in_flight + len(on_the_way)
        self._sent_seconds = sum(sent.share_seconds for sent in on_the_way)
        self._waiting_images = self._reported_images.copy()
        if self.status.backlog_seconds > 0:  # else the device is free, and what comes does not wait for mates
            for sent in on_the_way:
                self._waiting_images[sent.key] += sent.images
