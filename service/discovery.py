"""Where a frontend's groups are: a fixed list, DNS names and a file, together, looked at again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from service.dns_source import DnsSource
from service.file_source import FileSource
from service.metrics import FrontendMetrics
from service.settings import FrontendSettings
from service.sources import Source, SourceFailed

logger = logging.getLogger(__name__)

MOST_ADDRESSES = 1000
"""A source that would bring the set above this many addresses has failed."""


class Discovery:
    """Keeps the set of all addresses that the sources list.

    A source that fails, or lists nothing, keeps the addresses that it listed last, for as long as it fails: groups that
    still answer are worth more than the word of a name server that does not.

    Args:
        fixed: Addresses that are always in the set.
        sources: Looked at again and again, each on its own, so that a slow one delays no other.
        pause_seconds: Between two looks at a source.
        on_addresses: Called with the whole set whenever it changed.
        metrics: Where failed looks are counted.
    """

    def __init__(
        self,
        fixed: Collection[str],
        sources: Sequence[Source],
        pause_seconds: float,
        on_addresses: Callable[[frozenset[str]], None],
        metrics: FrontendMetrics,
    ) -> None:
        self._fixed = frozenset(fixed)
        self._sources = sources
        self._pause_seconds = pause_seconds
        self._on_addresses = on_addresses
        self._metrics = metrics
        self._addresses = self._fixed
        self._listed: dict[Source, frozenset[str]] = {}

    async def follow(self) -> None:
        """Follow the sources until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for source in self._sources:
                tasks.create_task(self._follow(source), name=f"follow {source.name}")

    async def _follow(self, source: Source) -> None:
        failing = False
        while True:
            try:
                self._take(source, await source.look())
            except SourceFailed as error:
                self._metrics.discovery_failures.labels(source.kind).inc()
                if not failing:  # one line per failure, not one per look
                    kept = len(self._listed.get(source, ()))
                    logger.warning(
                        "groups can't be looked up; those known are kept",
                        extra={"source": source.name, "error": str(error), "kept": kept},
                    )
                failing = True
            else:
                if failing:
                    logger.info("groups can be looked up again", extra={"source": source.name})
                failing = False
            await asyncio.sleep(self._pause_seconds)

    def _take(self, source: Source, listed: frozenset[str]) -> None:
        all_listed = {**self._listed, source: listed}
        addresses = self._fixed.union(*all_listed.values())
        if len(addresses) > MOST_ADDRESSES:
            raise SourceFailed(f"{len(addresses)} addresses are too many; at most {MOST_ADDRESSES} are used")
        self._listed = all_listed
        if addresses != self._addresses:
            self._addresses = addresses
            self._on_addresses(addresses)


def sources_of(settings: FrontendSettings) -> list[Source]:
    """Return the sources that may list other addresses later."""
    sources: list[Source] = [DnsSource(target, settings.dns_server) for target in settings.groups_dns]
    if settings.groups_file is not None:
        sources.append(FileSource(settings.groups_file))
    return sources
