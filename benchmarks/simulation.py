"""Groups and requests on a virtual clock: what benchmarks.routing plays its policies against.

A group here does what workers/queue.py does: a short queue of limited room, batches of one key, the oldest request
first.
It tells its load as workers/endpoint.py does: at changes, at most every 10 ms, and at least every 0.5 s.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from pixelpod.v1 import group_pb2, images_pb2

MODEL = "simulated"
STATUS_SECONDS = 0.5
PAUSE_SECONDS = 0.01
BATCHES_WAITING = 2
"""Of the largest size: as many images as a group's queue holds."""

BATCH_SHARES = {1: 0.4, 2: 0.6, 4: 1.0}
"""Of the seconds of a full batch, by batch size."""
FULL_BATCH = max(BATCH_SHARES)
STEP_SECONDS = {512: 0.02, 768: 0.045, 1024: 0.08}
"""Of a full batch, by pixels of a side, on a group of speed 1."""
BESIDE_SECONDS = {512: 0.05, 768: 0.1, 1024: 0.2}
"""Of all else in a full batch: encoding and decoding."""
STEPS = (4, 8, 20, 28, 50)


class Key(NamedTuple):
    """What the images of a batch have in common."""

    pixels: int
    steps: int

    def seconds(self, images: int) -> float:
        """Return how long a batch of so many images takes on a group of speed 1."""
        size = next(size for size in BATCH_SHARES if size >= images)
        return BATCH_SHARES[size] * (BESIDE_SECONDS[self.pixels] + self.steps * STEP_SECONDS[self.pixels])


KEYS = [Key(pixels, steps) for pixels in STEP_SECONDS for steps in STEPS]
"""Asked for equally often."""
PARAMETERS = {
    key: images_pb2.ResolvedParameters(width=key.pixels, height=key.pixels, num_images=1, steps=key.steps)
    for key in KEYS
}


class Clock:
    """Virtual seconds, and what happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Have `event` happen so many seconds from now."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def run(self, done: Callable[[], bool]) -> None:
        """Let everything happen in order until `done` or nothing is left."""
        while self._events and not done():
            self.now, _, event = heapq.heappop(self._events)
            event()


@dataclass(eq=False)
class Request:
    """One image."""

    key: Key
    arrived: float
    id: str = ""
    refused: Callable[[], None] = lambda: None
    ended: Callable[[], None] = lambda: None


@dataclass
class Scene:
    """What all policies of one run have in common: the same groups and the same requests for each."""

    groups: int
    frontends: int
    load: float
    """Of the capacity, which is what all groups compute in full batches."""
    requests: int
    delay_seconds: float
    """Of every message between frontends and groups."""
    seed: int = 0
    speeds: list[float] = field(init=False)
    """Of the groups: every fifth is slow, and no two are quite the same."""

    def __post_init__(self) -> None:
        draw = random.Random(f"speeds {self.seed}")
        self.speeds = [(0.6 if index % 5 == 4 else 1.0) * draw.gauss(1.0, 0.02) for index in range(self.groups)]

    @property
    def capacity(self) -> float:
        """Images a second in full batches."""
        return FULL_BATCH * sum(self.speeds) / (sum(key.seconds(FULL_BATCH) for key in KEYS) / len(KEYS))

    def arrivals(self) -> Iterator[tuple[float, Key, int]]:
        """Yield the seconds to the next request, what it asks for, and the frontend that gets it."""
        draw = random.Random(f"arrivals {self.seed}")
        for _ in range(self.requests):
            yield (
                draw.expovariate(self.load * self.capacity),
                draw.choice(KEYS),
                draw.randrange(self.frontends),
            )


class Group:
    """One group.

    Args:
        clock: Virtual time.
        name: In its status.
        speed: How many times as fast as the figures above.
        limited: Whether it refuses what its queue has no room for.
        on_status: Called with every status when it is sent; None if nobody listens.
    """

    def __init__(
        self,
        clock: Clock,
        name: str,
        speed: float,
        limited: bool = False,
        on_status: Callable[[group_pb2.GroupStatus], None] | None = None,
    ) -> None:
        self.arrived: Counter[int] = Counter()
        """Requests that came, refused or not, by interval of STATUS_SECONDS."""
        self.refused = 0
        self._clock = clock
        self._speed = speed
        self._room = BATCHES_WAITING * FULL_BATCH if limited else None
        self._on_status = on_status
        self._waiting: list[Request] = []
        self._computing: list[Request] = []
        self._batch_ends = 0.0
        self._status = self._first_status(name)
        self._told = 0.0
        self._telling = False

    def put(self, request: Request) -> None:
        """Take a request, or refuse it."""
        self.arrived[int(self._clock.now / STATUS_SECONDS)] += 1
        if self._room is not None and len(self._waiting) >= self._room:
            self.refused += 1
            request.refused()
            return
        self._waiting.append(request)
        if not self._computing:
            self._start()
        self._changed()

    def status(self) -> group_pb2.GroupStatus:
        """Return the status of this moment."""
        status = group_pb2.GroupStatus()
        status.CopyFrom(self._status)
        waiting = Counter(request.key for request in self._waiting)
        backlog = sum(self._seconds(key, images) for key, images in waiting.items())
        status.backlog_seconds = backlog + (self._batch_ends - self._clock.now if self._computing else 0.0)
        status.in_flight = len(self._waiting) + len(self._computing)
        status.waiting[:] = [request.id for request in self._waiting]
        status.computing[:] = [request.id for request in self._computing]
        for key, images in waiting.items():
            status.waiting_images.add(width=key.pixels, height=key.pixels, steps=key.steps, images=images)
        status.free_slots = max(0, (self._room or 0) - len(self._waiting))
        return status

    def _seconds(self, key: Key, images: int) -> float:
        full, rest = divmod(images, FULL_BATCH)
        seconds = full * key.seconds(FULL_BATCH) + (key.seconds(rest) if rest else 0.0)
        return seconds / self._speed

    def _start(self) -> None:
        """Compute the oldest request with those of its key."""
        key = self._waiting[0].key
        self._computing = [request for request in self._waiting if request.key == key][:FULL_BATCH]
        self._waiting = [request for request in self._waiting if request not in self._computing]
        seconds = self._seconds(key, len(self._computing))
        self._batch_ends = self._clock.now + seconds
        self._clock.after(seconds, self._end)

    def _end(self) -> None:
        ended, self._computing = self._computing, []
        if self._waiting:
            self._start()
        for request in ended:
            request.ended()
        self._changed()

    def _changed(self) -> None:
        """Have a status sent now, or as soon as one may be."""
        if self._on_status is not None and not self._telling:
            self._telling = True
            self._clock.after(max(0.0, self._told + PAUSE_SECONDS - self._clock.now), self.tell)

    def tell(self) -> None:
        """Send a status, and another one when that gets old."""
        assert self._on_status is not None
        self._telling, self._told = False, self._clock.now
        self._on_status(self.status())
        self._clock.after(STATUS_SECONDS, lambda told=self._told: self._tell_unless_since(told))

    def _tell_unless_since(self, told: float) -> None:
        if self._told == told:
            self.tell()

    def _first_status(self, name: str) -> group_pb2.GroupStatus:
        buckets = [
            images_pb2.Bucket(width=pixels, height=pixels, batch_sizes=list(BATCH_SHARES), warm=True)
            for pixels in STEP_SECONDS
        ]
        measured = [
            group_pb2.BatchSeconds(
                width=pixels,
                height=pixels,
                batch_size=size,
                step_seconds=share * STEP_SECONDS[pixels] / self._speed,
                beside_seconds=share * BESIDE_SECONDS[pixels] / self._speed,
            )
            for pixels in STEP_SECONDS
            for size, share in BATCH_SHARES.items()
        ]
        return group_pb2.GroupStatus(
            group=name,
            epoch=1,
            model=images_pb2.Model(name=MODEL, revision="r1", buckets=buckets),
            batch_seconds=measured,
        )


def ideal_seconds(scene: Scene) -> list[float]:
    """Return what each request would take with one queue for all groups, complete knowledge and no delays.

    Whichever group is free takes the oldest request and the oldest of its key with it; of several the fastest.
    """
    clock, seconds = Clock(), []
    free = [(-speed, index) for index, speed in enumerate(scene.speeds)]
    heapq.heapify(free)
    waiting: dict[Key, list[float]] = defaultdict(list)

    def start() -> None:
        while free and any(waiting.values()):
            key = min((key for key in waiting if waiting[key]), key=lambda key: waiting[key][0])
            batch, waiting[key] = waiting[key][:FULL_BATCH], waiting[key][FULL_BATCH:]
            group = heapq.heappop(free)
            clock.after(key.seconds(len(batch)) / -group[0], partial(end, group, batch))

    def end(group: tuple[float, int], batch: list[float]) -> None:
        seconds.extend(clock.now - arrived for arrived in batch)
        heapq.heappush(free, group)
        start()

    def arrive(key: Key) -> None:
        waiting[key].append(clock.now)
        start()

    feed(clock, scene, lambda key, frontend: arrive(key))
    clock.run(lambda: len(seconds) == scene.requests)
    return seconds


def feed(clock: Clock, scene: Scene, arrive: Callable[[Key, int], None]) -> None:
    """Have every request of the scene arrive in its time."""
    arrivals = scene.arrivals()

    def next_one() -> None:
        following = next(arrivals, None)
        if following is not None:
            seconds, key, frontend = following
            clock.after(seconds, lambda: (next_one(), arrive(key, frontend)))

    next_one()
