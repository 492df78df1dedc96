"""The router: which groups can compute a request, and which of them does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

from pixelpod.server.errors import Unavailable
from pixelpod.v1 import images_pb2
from service.admission import Ticket
from service.group_connection import GroupConnection
from service.sizes import size_text

MIN_RETRY_SECONDS = 0.5
"""Groups that should be ready by now may be so in a moment."""

RETRY_NOT_READY_SECONDS = 5.0
"""Groups that load or warm take a while: seconds from a compile cache, minutes without."""

TIE = 1.1
"""Finishes within this many times the earliest one are equal: predictions are means, and no better than that."""

ENOUGH = 50
"""Groups to choose among: more are hardly better for one frontend, and worse for ten (benchmarks.routing)."""


def ready_groups(groups: Iterable[GroupConnection], model: str) -> list[GroupConnection]:
    """Return the groups that are ready for `model`.

    Raises:
        Unavailable: if there is none. A group that loads does not know all of its model's limits yet, so no request can
            be held to them either.
    """
    groups = list(groups)
    ready = [group for group in groups if group.serves(model)]
    if not ready:
        raise not_ready(groups, model)
    return ready


def not_ready(groups: Iterable[GroupConnection], model: str) -> Unavailable:
    """Return the error of requests for `model` while none of the `groups` is ready for it."""
    groups = [group for group in groups if group.model is not None and group.model.name == model]
    states = ", ".join(sorted({str(group.availability) for group in groups}))
    waits = [wait for group in groups if (wait := group.absence.seconds_left) is not None]
    return Unavailable(
        f"no group of model {model} is ready; its groups are: {states}; try again",
        reason="GROUPS_NOT_READY",
        retry_after_seconds=max(MIN_RETRY_SECONDS, min(waits)) if waits else RETRY_NOT_READY_SECONDS,
    )


def warm_groups(ready: Iterable[GroupConnection], parameters: images_pb2.ResolvedParameters) -> list[GroupConnection]:
    """Return the groups of `ready` that are warm for the request's size.

    Raises:
        Unavailable: if there is none.
    """
    warm = [group for group in ready if group.load.durations.warm((parameters.width, parameters.height))]
    if not warm:
        size = size_text(parameters.width, parameters.height)
        raise Unavailable(
            f"no group of the model is warm for {size} yet; try again, or ask for another size",
            reason="BUCKET_NOT_WARM",
            retry_after_seconds=RETRY_NOT_READY_SECONDS,
        )
    return warm


def suits(group: GroupConnection, ticket: Ticket) -> bool:
    """Return whether `group` is one that may compute the ticket's request, now or when it has room."""
    return (
        group.serves(ticket.model)
        and ticket.takes_revision(group.revision)
        and not (ticket.shunned and (group.address, group.epoch) in ticket.shunned)
        and group.load.durations.warm(ticket.size)
    )


def choose_group(groups: Sequence[GroupConnection], ticket: Ticket) -> GroupConnection | None:
    """Return the group with room that is predicted to finish first, among equals one at random; None without any.

    Frontends do not know of each other: were one group the best for all of them, all of them would choose it. So a
    choice is among the next `ENOUGH` that could be chosen, from anywhere on.
    """
    able = list(itertools.islice(_able(groups, ticket), ENOUGH))
    if not able:
        return None
    finishes = [group.load.backlog_seconds + group.load.own_seconds(ticket) for group in able]
    latest = min(finishes) * TIE
    near = [group for group, finish in zip(able, finishes, strict=True) if finish <= latest]
    fewest = min(group.load.requests_ahead for group in near)
    return random.choice([group for group in near if group.load.requests_ahead == fewest])


def _able(groups: Sequence[GroupConnection], ticket: Ticket) -> Iterator[GroupConnection]:
    """Yield the groups that may compute the request now, beginning anywhere."""
    start = random.randrange(len(groups)) if groups else 0
    for group in itertools.chain(itertools.islice(groups, start, None), itertools.islice(groups, start)):
        if group.load.room > 0 and suits(group, ticket):
            yield group
