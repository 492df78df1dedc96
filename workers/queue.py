"""The group's small, bounded queue: requests from acceptance to their end.

The endpoint fills it, the leader empties it. The long queue is the frontends'; this one only keeps the device busy.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pixelpod.server.errors import Overloaded, RequestError, Unavailable
from workers.request import AcceptedRequest, deadline_passed

_LEAST_RETRY_SECONDS = 0.1


@dataclass(frozen=True)
class Load:
    """How busy the group is."""

    waiting: int
    """Requests that no batch was made of yet."""
    ahead: int
    """Requests that are not computed yet: those that wait and the one that computes."""
    in_flight: int
    """Requests accepted and not yet ended."""
    free_slots: int
    """How many more would be accepted now."""
    backlog_seconds: float
    """Of computing, accepted and not yet done."""


class RequestQueue:
    """Thread-safe.

    Args:
        queue_limit: Requests that may wait.
        in_flight_limit: Requests that may be accepted and not yet ended.
    """

    def __init__(self, queue_limit: int, in_flight_limit: int) -> None:
        self._queue_limit = queue_limit
        self._in_flight_limit = in_flight_limit
        self._on_change: Callable[[], None] = lambda: None
        self._waiting: deque[AcceptedRequest] = deque()
        self._in_flight: list[AcceptedRequest] = []
        self._closed = False
        self._changed = threading.Condition()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, on whichever thread, after every change of the load."""
        self._on_change = callback

    def put(self, request: AcceptedRequest) -> Load:
        """Accept `request`, and return the load before it.

        Raises:
            Overloaded: if there is no room.
            Unavailable: if the queue was closed.
        """
        with self._changed:
            load = self._load()
            if self._closed:
                raise Unavailable("the group is draining", reason="GROUP_DRAINING")
            if load.free_slots == 0:
                raise Overloaded(
                    f"the group's queue is full: {load.waiting} requests wait (queue_limit {self._queue_limit}), "
                    f"{load.in_flight} are in flight (in_flight_limit {self._in_flight_limit})",
                    reason="QUEUE_FULL",
                    retry_after_seconds=max(_LEAST_RETRY_SECONDS, load.backlog_seconds / load.in_flight),
                )
            self._waiting.append(request)
            self._in_flight.append(request)
            self._changed.notify_all()
        self._on_change()
        return load

    def take(self, timeout_seconds: float) -> AcceptedRequest | None:
        """Return the next request that somebody still waits for.

        Returns None when none came within the timeout, and at once when the queue is closed and empty. A request whose
        time ran out while it waited ends here.
        """
        until = time.monotonic() + timeout_seconds
        with self._changed:
            request = self._next_wanted()
            while request is None and not self._closed and time.monotonic() < until:
                self._changed.wait(until - time.monotonic())
                request = self._next_wanted()
        if request is not None:
            self._on_change()
        return request

    def leave(self, request: AcceptedRequest) -> None:
        """Forget a request that ended, however it ended."""
        with self._changed:
            self._in_flight.remove(request)
            if request in self._waiting:
                self._waiting.remove(request)
            self._changed.notify_all()
        self._on_change()

    def close(self) -> None:
        """Accept nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._on_change()

    @property
    def closed(self) -> bool:
        """Whether nothing more is accepted."""
        return self._closed

    def end_all(self, error: RequestError) -> None:
        """End every request in flight with `error`, except those that have their ending already."""
        with self._changed:
            requests = list(self._in_flight)
        for request in requests:
            request.abandon()
            request.end(error)

    def wait_until_empty(self, timeout_seconds: float) -> bool:
        """Wait until no request is in flight. Returns whether that came within the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._in_flight, timeout_seconds)

    def load(self) -> Load:
        """Return the load now."""
        with self._changed:
            return self._load()

    def _load(self) -> Load:
        waiting, in_flight = len(self._waiting), len(self._in_flight)
        room = min(self._queue_limit - waiting, self._in_flight_limit - in_flight)
        seconds_left = [request.seconds_left for request in self._in_flight if request.wanted and request.seconds_left]
        return Load(
            waiting=waiting,
            ahead=len(seconds_left),
            in_flight=in_flight,
            free_slots=0 if self._closed else room,
            backlog_seconds=sum(seconds_left),
        )

    def _next_wanted(self) -> AcceptedRequest | None:
        while self._waiting:
            request = self._waiting.popleft()
            if request.wanted:
                return request
            request.end(deadline_passed())
        return None
