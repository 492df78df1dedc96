"""When a request will be done, by what is before it and by what groups measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.admission import Ticket
from service.load import GroupLoad

LEAST_SHARE = 0.7
"""Of its predicted time that a request needs at the very least: means of measured times are not exact."""


@dataclass(frozen=True)
class Forecast:
    """What is expected of a request, in seconds from now."""

    start_seconds: float
    """Until it begins to compute."""
    own_seconds: float
    """Of computing."""

    @property
    def finish_seconds(self) -> float:
        """Until it is done."""
        return self.start_seconds + self.own_seconds


def forecast(ticket: Ticket, before: Sequence[Ticket], groups: Sequence[GroupLoad]) -> Forecast:
    """Return when `ticket` will be done by `groups`, at least one, with the tickets `before` it.

    A request that finds a free device computes by itself; one that waits has mates.
    """
    fastest = min(groups, key=lambda group: group.durations.own_seconds(ticket.parameters))
    work = sum(fastest.durations.share_seconds(waiting.parameters) for waiting in before)
    start = level([group.backlog_seconds for group in groups], work)
    durations = fastest.durations
    own = durations.full_seconds(ticket.parameters) if start > 0 else durations.own_seconds(ticket.parameters)
    return Forecast(start, own)


def least_seconds(ticket: Ticket, groups: Iterable[GroupLoad]) -> float:
    """Return less time than computing `ticket` has ever taken on any of `groups`; 0 without one."""
    return LEAST_SHARE * min((group.durations.own_seconds(ticket.parameters) for group in groups), default=0.0)


def level(backlogs_seconds: Sequence[float], work_seconds: float) -> float:
    """Return when the first of several groups has nothing left to do, if the work goes to the least busy ones first.

    As water fills vessels with uneven floors: the work raises the lowest floors to one level.
    """
    floors = sorted(backlogs_seconds)
    reached = floors[0]
    for filled, floor in enumerate(floors[1:], start=1):
        needed = (floor - reached) * filled
        if needed >= work_seconds:
            return reached + work_seconds / filled
        work_seconds -= needed
        reached = floor
    return reached + work_seconds / len(floors)
