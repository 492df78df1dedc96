"""All groups that a frontend routes to, and what they serve together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from pixelpod.server.callers import Caller
from pixelpod.v1 import images_pb2
from service.catalog import find_model, served_models
from service.group_access import PLAIN_TEXT, GroupAccess
from service.group_connection import GroupConnection

logger = logging.getLogger(__name__)


class Groups:
    """Holds one connection per group and the catalog of their models.

    Args:
        addresses: Of the groups, host:port each.
        silent_seconds: Without a status for this long a group is gone.
        on_change: Called after any group's availability or model changed.
        access: How groups are spoken to.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        silent_seconds: float,
        on_change: Callable[[], None],
        access: GroupAccess = PLAIN_TEXT,
    ) -> None:
        self.models: dict[str, images_pb2.Model] = {}
        """What is served, by name, sorted."""
        self._on_change = on_change
        self._connections = [GroupConnection(address, silent_seconds, self._changed, access) for address in addresses]
        self._watches: list[asyncio.Task[None]] = []

    def __iter__(self) -> Iterator[GroupConnection]:
        return iter(self._connections)

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
        """Begin to watch every group."""
        for group in self:
            watch = asyncio.create_task(group.watch(), name=f"watch {group.address}")
            watch.add_done_callback(_report_failure)
            self._watches.append(watch)

    def cut_requests(self, message: str, reason: str) -> None:
        """End every request in flight on any group with `Unavailable`."""
        for group in self:
            group.cut_requests(message, reason)

    async def close(self) -> None:
        """Stop watching and close all connections."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await asyncio.gather(*(group.close() for group in self))

    def _changed(self) -> None:
        self.models = served_models(self)
        self._on_change()


def _report_failure(watch: asyncio.Task[None]) -> None:
    if not watch.cancelled() and (error := watch.exception()):
        logger.critical("a group is watched no more", exc_info=error)
