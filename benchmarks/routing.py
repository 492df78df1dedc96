"""Many frontends on the same groups, none of which knows what the others send: how long requests take by policy.

python -m benchmarks.routing [--groups N] [--frontends N] [--load SHARE ...] [--delay S] [--seconds S] [--seed N]

A simulation on a virtual clock (benchmarks.simulation), so that busy machines change nothing; the frontends' GroupLoad,
choose_group and AdmissionQueue are the real ones. Seconds are from arrival to the end of the computation. The ideal is
one central queue that knows everything at once; it serves in order, so that it is not the least that is possible.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.simulation import (
    KEYS,
    MODEL,
    PARAMETERS,
    STATUS_SECONDS,
    Clock,
    Group,
    Key,
    Request,
    Scene,
    feed,
    ideal_seconds,
)
from pixelpod.v1 import group_pb2
from service.admission import AdmissionQueue, Ticket
from service.load import GroupLoad
from service.router import choose_group

DEADLINE_SECONDS = 600.0


@dataclass(frozen=True)
class Result:
    """What became of the requests of one scene."""

    seconds: list[float]
    """From arrival to end, sorted."""
    refusals: int
    crowding: float
    """The most requests that came to one group within a status interval, over the mean."""

    def quantile(self, share: float) -> float:
        return self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


class KnownGroup:
    """What the router looks at of a `GroupConnection`."""

    revision = "r1"
    epoch = 1

    def __init__(self, address: str, clock: Clock) -> None:
        self.address = address
        self.load = GroupLoad(clock)

    def serves(self, model: str) -> bool:
        return model == MODEL


class Frontend:
    """Holds requests until a group has room, and chooses it as service/dispatcher.py does.

    Args:
        clock: Virtual time.
        groups: All of them.
        delay_seconds: Of every message.
    """

    def __init__(self, clock: Clock, groups: Sequence[Group], delay_seconds: float) -> None:
        self._clock = clock
        self._groups = groups
        self._delay_seconds = delay_seconds
        self._queue = AdmissionQueue(limit=0)
        self._known = [KnownGroup(str(index), clock) for index in range(len(groups))]
        self._requests: dict[Ticket, Request] = {}

    def arrive(self, request: Request) -> None:
        """Take a new request."""
        deadline = request.arrived + DEADLINE_SECONDS
        ticket = Ticket(PARAMETERS[request.key], deadline, MODEL, request_id=request.id, arrived=request.arrived)
        self._requests[ticket] = request
        self._wait(ticket)

    def take(self, index: int, status: group_pb2.GroupStatus) -> None:
        """Note a group's status, and use its room."""
        self._known[index].load.take(status)
        self._dispatch([self._known[index]])

    def _wait(self, ticket: Ticket) -> None:
        self._queue.add(ticket)
        self._dispatch(self._known)

    def _dispatch(self, groups: Sequence[KnownGroup]) -> None:
        if not self._queue:
            return
        able = [group for group in groups if group.load.room > 0]
        for ticket in self._queue:
            if not able:
                return
            group = choose_group(able, ticket)
            if group is not None:
                self._queue.remove(ticket)
                self._send(ticket, group)
                able = [group for group in able if group.load.room > 0]

    def _send(self, ticket: Ticket, group: KnownGroup) -> None:
        request, sent, ended = self._requests[ticket], group.load.send(ticket), self._requests[ticket].ended
        clock, delay = self._clock, self._delay_seconds

        def refuse() -> None:
            group.load.forget(sent)
            group.load.refuse()
            self._wait(ticket)

        def end() -> None:
            ended()
            del self._requests[ticket]
            clock.after(delay, lambda: group.load.forget(sent))

        attempt = Request(request.key, request.arrived, request.id, lambda: clock.after(delay, refuse), end)
        clock.after(delay, lambda: self._groups[int(group.address)].put(attempt))


Choice = Callable[[list[int]], int]
"""Of a group, by how many requests each group has of the frontend that chooses."""


def pixelpod(scene: Scene) -> Result:
    """Late binding to the group that is predicted to finish first."""
    random.seed(scene.seed)  # the router's
    clock = Clock()
    groups: list[Group] = []
    frontends: list[Frontend] = []

    def tell(index: int, status: group_pb2.GroupStatus) -> None:
        for frontend in frontends:
            frontend.take(index, status)

    def on_status(index: int) -> Callable[[group_pb2.GroupStatus], None]:
        return lambda status: clock.after(scene.delay_seconds, lambda: tell(index, status))

    groups += [
        Group(clock, str(index), speed, limited=True, on_status=on_status(index))
        for index, speed in enumerate(scene.speeds)
    ]
    frontends += [Frontend(clock, groups, scene.delay_seconds) for _ in range(scene.frontends)]
    for index, group in enumerate(groups):
        tell(index, group.status())
        clock.after(random.uniform(0, STATUS_SECONDS), group.tell)
    return _play(scene, clock, groups, lambda request, frontend: frontends[frontend].arrive(request))


def balanced(scene: Scene, choices: Callable[[Scene], list[Choice]]) -> Result:
    """A usual balancer: every frontend sends at once, groups queue without a limit."""
    clock = Clock()
    groups = [Group(clock, str(index), speed) for index, speed in enumerate(scene.speeds)]
    outstanding = [[0] * scene.groups for _ in range(scene.frontends)]
    choose = choices(scene)

    def arrive(request: Request, frontend: int) -> None:
        mine, ended = outstanding[frontend], request.ended
        index = choose[frontend](mine)
        mine[index] += 1

        def forget() -> None:
            mine[index] -= 1

        def end() -> None:
            ended()
            clock.after(scene.delay_seconds, forget)

        request.ended = end
        clock.after(scene.delay_seconds, lambda: groups[index].put(request))

    return _play(scene, clock, groups, arrive)


def round_robin(scene: Scene) -> list[Choice]:
    """In turns; every frontend begins somewhere else."""
    draw = random.Random(scene.seed)

    def choice() -> Choice:
        following = draw.randrange(scene.groups)

        def choose(outstanding: list[int]) -> int:
            nonlocal following
            following = (following + 1) % len(outstanding)
            return following

        return choose

    return [choice() for _ in range(scene.frontends)]


def least_outstanding(scene: Scene) -> list[Choice]:
    """The group with the fewest requests of this frontend, one of several at random."""
    draw = random.Random(scene.seed)

    def choose(outstanding: list[int]) -> int:
        least = min(outstanding)
        return draw.choice([index for index, requests in enumerate(outstanding) if requests == least])

    return [choose] * scene.frontends


def any_group(scene: Scene) -> list[Choice]:
    """At random."""
    draw = random.Random(scene.seed)
    return [lambda outstanding: draw.randrange(len(outstanding))] * scene.frontends


POLICIES: dict[str, Callable[[Scene], Result]] = {
    "ideal": lambda scene: Result(sorted(ideal_seconds(scene)), 0, 0.0),
    "pixelpod": pixelpod,
    "least outstanding": lambda scene: balanced(scene, least_outstanding),
    "round robin": lambda scene: balanced(scene, round_robin),
    "random": lambda scene: balanced(scene, any_group),
}


def _play(scene: Scene, clock: Clock, groups: Sequence[Group], arrive: Callable[[Request, int], None]) -> Result:
    """Have the scene's requests arrive, and wait until all have ended."""
    seconds: list[float] = []
    ids = map(str, itertools.count())

    def begin(key: Key, frontend: int) -> None:
        request = Request(key, clock.now, next(ids))
        request.ended = lambda: seconds.append(clock.now - request.arrived)
        arrive(request, frontend)

    feed(clock, scene, begin)
    clock.run(lambda: len(seconds) == scene.requests)
    assert len(seconds) == scene.requests
    return Result(sorted(seconds), sum(group.refused for group in groups), _crowding(groups))


def _crowding(groups: Sequence[Group]) -> float:
    crowds = [count for group in groups for count in group.arrived.values()]
    intervals = 1 + max(interval for group in groups for interval in group.arrived)
    return max(crowds) / (sum(crowds) / intervals / len(groups))


def choice_seconds(group_count: int) -> float:
    """Return the seconds that one choice among so many groups takes, all of them free; with busy ones it takes less."""
    clock = Clock()
    groups = [KnownGroup(str(index), clock) for index in range(group_count)]
    for index, group in enumerate(groups):
        group.load.take(Group(clock, str(index), 1 + index / group_count, limited=True).status())
    ticket = Ticket(PARAMETERS[KEYS[0]], DEADLINE_SECONDS, MODEL)
    # The best of many: on a busy machine others take the rest.
    return min(timeit.repeat(lambda: choose_group(groups, ticket), number=5, repeat=30)) / 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--frontends", type=int, default=10)
    parser.add_argument("--load", type=float, nargs="+", default=[0.7, 0.9, 0.95], help="of the groups' capacity")
    parser.add_argument("--delay", type=float, default=0.02, help="seconds of every message")
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    arguments = parser.parse_args()
    print(f"choosing among {arguments.groups} groups: {choice_seconds(arguments.groups) * 1e6:.0f} us", flush=True)
    for load in arguments.load:
        scene = Scene(arguments.groups, arguments.frontends, load, 1, arguments.delay, arguments.seed)
        scene.requests = int(arguments.seconds * load * scene.capacity)
        ideal = POLICIES["ideal"](scene).quantile(0.99)
        print(f"load {load:g}, {scene.requests} requests; ideal p99 {ideal:.2f} s")
        for name in arguments.policies:
            began = time.process_time()
            result = POLICIES[name](scene)
            ratios = [result.quantile(share) / ideal for share in (0.5, 0.99, 1.0)]
            print(
                f"  {name:18} p50 {ratios[0]:5.2f}  p99 {ratios[1]:5.2f}  max {ratios[2]:5.2f}  "
                f"refusals {result.refusals:6}  crowding {result.crowding:6.1f}  ({time.process_time() - began:.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
