"""The group's small, bounded queue: requests from acceptance to their end.

The endpoint fills it, the leader empties it. The long queue is the frontends'; this one only keeps the device busy.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pixelpod.server.errors import Overloaded, RequestError, Unavailable
from workers.batching import BatchKey
from workers.estimates import Estimates
from workers.request import AcceptedRequest, RequestedImage, deadline_passed, deadline_unreachable
from workers.window import BatchWindow

_LEAST_RETRY_SECONDS = 0.1
_LEAST_SHARE = 0.7
"""Of its estimate that a request needs at the very least: means of measured times are not exact."""


@dataclass(frozen=True)
class Load:
    """How busy the group is."""

    waiting: int
    """Requests with images that no batch was made of yet."""
    in_flight: int
    """Requests accepted and not yet ended."""
    free_slots: int
    """How many more images would be accepted now."""
    backlog_seconds: float
    """Of computing, accepted and not yet done."""


class RequestQueue:
    """Thread-safe.

    Batches are made in the order of arrival: the oldest request's images come next, and younger requests with the same
    key fill the places that are left. So a request waits for no more than the batches of those before it, each as long
    as a full one.

    Args:
        estimates: Of the seconds that batches take.
        queue_limit: Images that may wait. A request is taken whole while there is room for one of its images.
        in_flight_limit: Requests that may be accepted and not yet ended.
        window_seconds: Longest time that a batch waits for mates.
    """

    def __init__(
        self, estimates: Estimates, queue_limit: int, in_flight_limit: int, window_seconds: float = 0.0
    ) -> None:
        self.estimates = estimates
        """What the load is worked out with."""
        self._queue_limit = queue_limit
        self._in_flight_limit = in_flight_limit
        self._on_change: Callable[[], None] = lambda: None
        self._waiting: list[AcceptedRequest] = []
        """Those with images that no batch was made of, the oldest first."""
        self._in_flight: list[AcceptedRequest] = []
        self._computing: list[AcceptedRequest] = []
        self._window = BatchWindow(window_seconds)
        self._closed = False
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._left = threading.Condition(self._lock)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, on whichever thread, after every change of the load."""
        self._on_change = callback

    def put(self, request: AcceptedRequest) -> None:
        """Accept `request`.

        Raises:
            Overloaded: if there is no room.
            Unavailable: if the queue was closed.
        """
        with self._lock:
            if self._closed:
                raise Unavailable("the group is draining", reason="GROUP_DRAINING")
            if self._free_slots() == 0:
                raise self._full()
            self._waiting.append(request)
            self._in_flight.append(request)
            self._arrived.notify()
        self._on_change()

    def take(self, timeout_seconds: float) -> list[RequestedImage]:
        """Return the images of the next batch: all of one key, and at most as many as the largest batch holds.

        Returns none when no request came within the timeout, and at once when the queue is closed and empty. A request
        that can't be done in its time ends here. Call `batch_ended` before the next time.
        """
        until = time.monotonic() + timeout_seconds
        with self._lock:
            while True:
                self._end_hopeless()
                images = self._next_images()
                wait_until = self._starts_at(images) if images else until
                if time.monotonic() >= wait_until or (self._closed and not images):
                    break
                self._arrived.wait(wait_until - time.monotonic())
            for image in images:
                image.request.taken += 1
            self._computing = _requests_of(images)
            self._waiting = [request for request in self._waiting if request.taken < request.images]
        if images:
            self._on_change()
        return images

    def batch_ended(self) -> None:
        """Note that the batch of the images taken last was computed, or given up."""
        with self._lock:
            if self._computing:
                self._window.batch_ended(self._computing[0].key, len(self._computing))
            self._computing = []
        self._on_change()

    def leave(self, request: AcceptedRequest) -> None:
        """Forget a request that ended, however it ended."""
        with self._lock:
            self._in_flight.remove(request)
            if request in self._waiting:
                self._waiting.remove(request)
            self._left.notify_all()
        self._on_change()

    def close(self) -> None:
        """Accept nothing more."""
        with self._lock:
            self._closed = True
            self._arrived.notify()
        self._on_change()

    @property
    def closed(self) -> bool:
        """Whether nothing more is accepted."""
        return self._closed

    def end_all(self, error: RequestError) -> None:
        """End every request in flight with `error`, except those that have their ending already."""
        with self._lock:
            requests = list(self._in_flight)
        for request in requests:
            request.abandon()
            request.end(error)

    def wait_until_empty(self, timeout_seconds: float) -> bool:
        """Wait until no request is in flight. Returns whether that came within the timeout."""
        with self._lock:
            return self._left.wait_for(lambda: not self._in_flight, timeout_seconds)

    def load(self) -> Load:
        """Return the load now."""
        with self._lock:
            return Load(len(self._waiting), len(self._in_flight), self._free_slots(), self._backlog_seconds())

    def images_by_key(self) -> Counter[BatchKey]:
        """Return how many images wait, by what can be computed together."""
        with self._lock:
            return self._images_by_key()

    def ids(self) -> tuple[list[str], list[str]]:
        """Return the ids of the requests in flight that wait behind others, and those of all others in flight."""
        with self._lock:
            next_ones = set() if self._computing else set(_requests_of(self._next_images()))
            behind = {request for request in self._waiting if not request.taken} - next_ones
            waiting: list[str] = []
            computing: list[str] = []
            for request in self._in_flight:
                (waiting if request in behind else computing).append(request.message.request_id)
            return waiting, computing

    def _free_slots(self) -> int:
        room = min(self._queue_limit - self._waiting_images(), self._in_flight_limit - len(self._in_flight))
        return 0 if self._closed else max(0, room)

    def _full(self) -> Overloaded:
        in_flight = len(self._in_flight)
        return Overloaded(
            f"the group's queue is full: {self._waiting_images()} images wait (queue_limit {self._queue_limit}), "
            f"{in_flight} requests are in flight (in_flight_limit {self._in_flight_limit})",
            reason="QUEUE_FULL",
            retry_after_seconds=max(_LEAST_RETRY_SECONDS, self._backlog_seconds() / in_flight),
        )

    def _waiting_images(self) -> int:
        return sum(request.images - request.taken for request in self._waiting)

    def _backlog_seconds(self) -> float:
        """Return what is left of the batch that computes, and the time of those that the waiting images will make."""
        waiting = sum(self.estimates.seconds(key, count) for key, count in self._images_by_key().items())
        return waiting + max((request.batch_seconds_left for request in self._computing), default=0.0)

    def _images_by_key(self) -> Counter[BatchKey]:
        images: Counter[BatchKey] = Counter()
        for request in self._waiting:
            if request.wanted:
                images[request.key] += request.images - request.taken
        return images

    def _end_hopeless(self) -> None:
        """End the waiting requests that nobody waits for, or that can't be done in their time."""
        hopeful = []
        for request in self._waiting:
            if not request.wanted:
                request.end(deadline_passed())
            elif time.monotonic() + self._least_seconds(request) > request.deadline:
                request.abandon()
                request.end(deadline_unreachable())
            else:
                hopeful.append(request)
        self._waiting = hopeful

    def _least_seconds(self, request: AcceptedRequest) -> float:
        """Return less time than what is left of a request has ever taken."""
        return _LEAST_SHARE * self.estimates.seconds(request.key, request.images - request.taken)

    def _next_images(self) -> list[RequestedImage]:
        """Return what the next batch would hold now."""
        if not self._waiting:
            return []
        key = self._waiting[0].key
        images = [
            RequestedImage(request, index)
            for request in self._waiting
            if request.key == key
            for index in range(request.taken, request.images)
        ]
        return images[: key.bucket.batch_sizes[-1]]

    def _starts_at(self, images: list[RequestedImage]) -> float:
        """Return the monotonic time until which a batch of these images waits for more."""
        if self._closed or len(images) == images[0].request.key.bucket.batch_sizes[-1]:
            return 0.0
        return self._window.pays_until(_requests_of(images))


def _requests_of(images: list[RequestedImage]) -> list[AcceptedRequest]:
    """Return the requests that the images belong to, each once, in order."""
    return list(dict.fromkeys(image.request for image in images))
