"""Which connections to close when there are too many."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from pixelpod.server.open_sockets import Accepted

ROOM_SHARE = 1 / 8
"""Of the connections allowed in all, so many are kept free for callers that come."""


class Reason(StrEnum):
    """Why a connection is closed."""

    ADDRESS = "address"
    """Its address has more than it may."""
    ROOM = "room"
    """It idled, and the limit in all was near."""


class Candidate(NamedTuple):
    """One connection of a server."""

    accepted: Accepted
    idle_since: float | None
    """Since when it has had no call under way, by the clock of `accepted`; None: it has one."""


def roomy(limit: int) -> int:
    """Return how many connections leave room for new ones, where there may be `limit` in all."""
    return limit - math.ceil(limit * ROOM_SHARE)


def choose(connections: Iterable[Candidate], limit: int, limit_per_address: int) -> list[tuple[Accepted, Reason]]:
    """Return the connections to close, and why.

    Of an address that has more than it may, those without a call go first, the longest idle before the others, then the
    youngest. Room for new callers is made of connections without a call only: of the address that has the most.

    Args:
        connections: All that are open.
        limit: How many there may be in all.
        limit_per_address: How many one address may have.
    """
    by_address = defaultdict(list)
    for connection in connections:
        by_address[connection.accepted.peer.address].append(connection)
    chosen = []
    for mine in by_address.values():
        mine.sort(key=_rank)
        while len(mine) > limit_per_address:
            chosen.append((mine.pop().accepted, Reason.ADDRESS))
    to_close = sum(map(len, by_address.values())) - roomy(limit)
    largest = [(-len(mine), address) for address, mine in by_address.items()]
    heapq.heapify(largest)
    while to_close > 0 and largest:
        _, address = heapq.heappop(largest)
        mine = by_address[address]
        if mine and mine[-1].idle_since is not None:
            chosen.append((mine.pop().accepted, Reason.ROOM))
            heapq.heappush(largest, (-len(mine), address))
            to_close -= 1
    return chosen


def _rank(connection: Candidate) -> tuple[bool, float]:
    """Return what sorts connections so that the last one is the first to close."""
    if connection.idle_since is None:
        return False, connection.accepted.seen
    return True, -connection.idle_since
