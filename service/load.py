"""What a frontend knows of a group's load: the group's last status, and what this frontend sent since."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pixelpod.v1 import group_pb2, images_pb2
from service.durations import Durations


@dataclass(eq=False)
class Sent:
    """A request that was sent to the group."""

    images: int
    share_seconds: float
    """Of the device."""
    accepted: bool = False
    """Whether the group said that it has the request: statuses from then on count it."""


class GroupLoad:
    """The load of one group.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.status = group_pb2.GroupStatus()
        """The last one."""
        self.durations = Durations(self.status)
        self._clock = clock
        self._received = 0.0
        self._sent: set[Sent] = set()
        self._refuses = False

    def take(self, status: group_pb2.GroupStatus) -> None:
        """Note a status that came now."""
        self.status = status
        self.durations = Durations(status)
        self._received = self._clock()
        self._refuses = False
        self._sent = {sent for sent in self._sent if not sent.accepted}

    def lose(self) -> None:
        """Note that the group is gone: nothing it said counts any more, but its name."""
        self.take(group_pb2.GroupStatus(group=self.status.group))

    def refuse(self) -> None:
        """Note that the group refused a request: it takes none until its next status."""
        self._refuses = True

    def send(self, parameters: images_pb2.ResolvedParameters) -> Sent:
        """Count a request as sent there, until `forget` or a status that counts it."""
        sent = Sent(parameters.num_images, self.durations.share_seconds(parameters))
        self._sent.add(sent)
        return sent

    def forget(self, sent: Sent) -> None:
        """Note that a request ended, or was never sent."""
        self._sent.discard(sent)

    @property
    def room(self) -> int:
        """Images that the group takes now; below 1 none."""
        return 0 if self._refuses else self.status.free_slots - sum(sent.images for sent in self._sent)

    @property
    def requests_ahead(self) -> int:
        """Requests in flight there."""
        return self.status.in_flight + len(self._sent)

    @property
    def backlog_seconds(self) -> float:
        """Seconds of work before a new request: what the group reported less the time since, and what was sent."""
        reported = self.status.backlog_seconds - (self._clock() - self._received)
        return max(0.0, reported) + sum(sent.share_seconds for sent in self._sent)
