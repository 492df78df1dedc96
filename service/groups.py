"""All groups that a frontend routes to, and what they serve together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pixelpod.server.callers import Caller
from pixelpod.v1 import images_pb2
from service.catalog import find_model, served_models
from service.group_access import PLAIN_TEXT, GroupAccess
from service.group_connection import GroupConnection, Incarnation
from service.tasks import spawn

logger = logging.getLogger(__name__)

HANDOVER_SECONDS = 10.0
"""How long the last ready group of a model is still routed to after it was taken out, unless another is ready."""

LINGER_SECONDS = 1.0
"""How long an unused connection is kept after its address was taken out: a request may be about to begin there."""


@dataclass
class _Member:
    """A connection that is kept up."""

    connection: GroupConnection
    watch: asyncio.Task[None]
    leave: asyncio.Task[None] | None = None
    """Since its address was taken out: waits until nobody needs it, then closes it."""
    replaced: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether it is taken out and gets no new requests."""


class Groups:
    """Holds one connection per address and the catalog of the groups' models.

    Iterating yields the connections to route to. Those that were taken out and replaced are not among them, nor is a
    second address of a group that another address already reaches.

    Args:
        addresses: Of the groups at the start, host:port each.
        silent_seconds: Without a status for this long a group is gone.
        on_change: Called after groups came or went, or any group's availability or model changed.
        on_status: Called with a group after each of its statuses.
        access: How groups are spoken to.
    """

    def __init__(
        self,
        addresses: Collection[str],
        silent_seconds: float,
        on_change: Callable[[], None],
        on_status: Callable[[GroupConnection], None],
        access: GroupAccess = PLAIN_TEXT,
    ) -> None:
        self.models: dict[str, images_pb2.Model] = {}
        """What is served, by name, sorted."""
        self._first_addresses = addresses
        self._silent_seconds = silent_seconds
        self._on_change = on_change
        self._on_status = on_status
        self._access = access
        self._members: dict[str, _Member] = {}
        self._routed: tuple[GroupConnection, ...] | None = ()
        """What iterating yields, several times for each request; None where it has to be found out anew."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[GroupConnection]:
        if self._routed is None:
            self._routed = tuple(self._distinct())
        return iter(self._routed)

    @property
    def any_ready(self) -> bool:
        """Whether some group takes requests."""
        return any(group.ready for group in self)

    def models_for(self, caller: Caller) -> dict[str, images_pb2.Model]:
        """Return what is served to `caller`, by name, sorted."""
        return {name: model for name, model in self.models.items() if caller.may_use(name)}

    def find_model(self, name: str, caller: Caller) -> images_pb2.Model:
        """Return what is published of a model that `caller` may use.

        Raises:
            PermissionDenied: if it may not use this one.
            RequestError: as `service.catalog.find_model` says.
        """
        if name:
            caller.check_model(name)
        return find_model(name, self.models_for(caller), self)

    def start(self) -> None:
        """Connect to the groups known at the start."""
        self.set_addresses(self._first_addresses)

    def set_addresses(self, addresses: Collection[str]) -> None:
        """Route to the groups at `addresses` and to no others.

        An address that is new gets a connection. One that is missing gets no new requests, as soon as another group of
        its model is ready; its connection is closed when its last request has ended, or the group is gone. If it comes
        back before, nothing happened.
        """
        for address, member in self._members.items():
            if address not in addresses and member.leave is None:
                logger.info("group taken out", extra={"group_address": address})
                member.leave = self._spawn(self._leave(address, member), f"leave {address}")
        for address in sorted(addresses):
            known = self._members.get(address)
            if known is None:
                logger.info("group added", extra={"group_address": address})
                self._members[address] = self._join(address)
            elif known.leave is not None:
                logger.info("group is back", extra={"group_address": address})
                known.leave.cancel()
                known.leave = None
                known.replaced.clear()
        self._changed()

    def cut_requests(self, message: str, reason: str) -> None:
        """End every request in flight on any group with `Unavailable`."""
        for member in self._members.values():
            member.connection.cut_requests(message, reason)

    async def close(self) -> None:
        """Stop watching and close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(member.connection.close() for member in self._members.values()))

    def _join(self, address: str) -> _Member:
        connection = GroupConnection(address, self._silent_seconds, self._changed, self._on_status, self._access)
        return _Member(connection, self._spawn(connection.watch(), f"watch {address}"))

    async def _leave(self, address: str, member: _Member) -> None:
        """Close a connection once it is replaced and unused.

        It is watched until then: when the group dies, its requests end.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(HANDOVER_SECONDS):
                await member.replaced.wait()
        if not member.replaced.is_set():
            member.replaced.set()
            self._changed()
        await asyncio.sleep(LINGER_SECONDS)
        await member.connection.unused()
        del self._members[address]
        member.watch.cancel()
        await member.connection.close()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _distinct(self) -> Iterator[GroupConnection]:
        """Yield the connections that are not replaced, of those to the same life of the same group only the first."""
        seen: set[Incarnation] = set()
        for connection in [member.connection for member in self._members.values() if not member.replaced.is_set()]:
            incarnation = connection.incarnation
            if incarnation in seen:
                continue
            if incarnation is not None:
                seen.add(incarnation)
            yield connection

    def _replace(self) -> None:
        """Route no more to groups that were taken out, where another of their model is ready or they are not."""
        listed = [member.connection for member in self._members.values() if member.leave is None]
        ready = {group.model.name for group in listed if group.ready and group.model is not None}
        for member in self._members.values():
            model = member.connection.model
            if member.leave is not None and (not member.connection.ready or model is None or model.name in ready):
                member.replaced.set()

    def _changed(self) -> None:
        self._replace()
        self._routed = None
        self.models = served_models(self)
        self._on_change()
