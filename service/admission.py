"""The bounded queue of a model's requests that wait for a group with room: by priority, then by deadline."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from pixelpod.v1 import images_pb2
from service.batch_key import BatchKey
from service.durations import Size


@dataclass(eq=False)
class Ticket:
    """A request that wants a place on a group."""

    parameters: images_pb2.ResolvedParameters
    deadline: float
    """By time.monotonic()."""
    model: str
    revision: str | None = None
    """Which revision of the model; None for any."""
    request_id: str = ""
    """As its caller knows it."""
    shunned: set[tuple[str, int]] = field(default_factory=set)
    """Address and epoch of groups that broke with the request in flight."""
    arrived: float = field(default_factory=time.monotonic)

    @property
    def order(self) -> tuple[int, float, float, int]:
        """What tickets are sorted by: urgent ones first, then those with the earliest deadline, then the oldest.

        No two are equal.
        """
        return -self.parameters.priority, self.deadline, self.arrived, id(self)

    @cached_property
    def size(self) -> Size:
        """Width and height in pixels. Like the next one kept, since routers look at it for each of many groups."""
        return self.parameters.width, self.parameters.height

    @cached_property
    def batch_key(self) -> BatchKey:
        """What its batch mates have in common with it."""
        return BatchKey.of(self.parameters)

    def takes_revision(self, revision: str) -> bool:
        """Return whether a group of this revision may compute the request."""
        return self.revision in (None, revision)


class AdmissionQueue:
    """Waiting tickets of one model, the most urgent first.

    Args:
        limit: Tickets that may wait.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._tickets: list[Ticket] = []

    def __iter__(self) -> Iterator[Ticket]:
        return iter(tuple(self._tickets))

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, ticket: Ticket) -> bool:
        index = self.position(ticket)
        return index < len(self._tickets) and self._tickets[index] is ticket

    @property
    def full(self) -> bool:
        """Whether as many wait as may."""
        return len(self._tickets) >= self.limit

    @property
    def last(self) -> Ticket | None:
        """The least urgent ticket."""
        return self._tickets[-1] if self._tickets else None

    def position(self, ticket: Ticket) -> int:
        """Return how many tickets are before `ticket`, whether or not it waits here."""
        return bisect.bisect_left(self._tickets, ticket.order, key=lambda waiting: waiting.order)

    def before(self, ticket: Ticket) -> list[Ticket]:
        """Return the tickets that come before `ticket`."""
        return self._tickets[: self.position(ticket)]

    def add(self, ticket: Ticket) -> None:
        """Let `ticket` wait. Its order must not change while it does.

        The limit is for whoever decides about new requests: one that had a place and lost it comes back in any case.
        """
        self._tickets.insert(self.position(ticket), ticket)

    def remove(self, ticket: Ticket) -> None:
        """Forget `ticket`, if it waits."""
        if ticket in self:
            del self._tickets[self.position(ticket)]
