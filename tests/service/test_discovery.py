"""What the sources list together, through failures and changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from service.discovery import MOST_ADDRESSES, Discovery
from service.metrics import FrontendMetrics
from service.sources import SourceFailed
from tests.service.conftest import eventually

PAUSE_SECONDS = 0.05


class ScriptedSource:
    """Lists what a test says."""

    kind = "scripted"

    def __init__(self, name: str, *listed: str) -> None:
        self.name = name
        self.listed = frozenset(listed)
        self.error: str | None = None
        self.hang = asyncio.Event()
        self.hang.set()
        self.looks = 0

    async def look(self) -> frozenset[str]:
        await self.hang.wait()
        self.looks += 1
        if self.error is not None:
            raise SourceFailed(self.error)
        return self.listed

    async def looked(self) -> None:
        """Wait until a look that began after this call has been dealt with."""
        looks = self.looks
        await eventually(lambda: self.looks >= looks + 3)


@contextlib.asynccontextmanager
async def following(
    fixed: list[str], *sources: ScriptedSource
) -> AsyncIterator[tuple[list[set[str]], FrontendMetrics]]:
    """Follow the sources; yield the sets that were told, in order."""
    told: list[set[str]] = []
    metrics = FrontendMetrics()
    discovery = Discovery(fixed, sources, PAUSE_SECONDS, lambda addresses: told.append(set(addresses)), metrics)
    task = asyncio.create_task(discovery.follow())
    yield told, metrics
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_sources_add_up_and_only_changes_are_told() -> None:
    one, other = ScriptedSource("one", "a:1", "b:1"), ScriptedSource("other", "b:1", "c:1")
    async with following(["a:1", "z:1"], one, other) as (told, _):
        await eventually(lambda: told[-1:] == [{"a:1", "b:1", "c:1", "z:1"}])
        one.listed = frozenset(["d:1"])
        await eventually(lambda: told[-1] == {"a:1", "b:1", "c:1", "d:1", "z:1"})
        count = len(told)
        other.listed = frozenset(["d:1"])
        await eventually(lambda: told[-1] == {"a:1", "d:1", "z:1"})
        await one.looked()
        await other.looked()
        assert len(told) == count + 1


async def test_failing_source_keeps_what_it_listed(caplog: pytest.LogCaptureFixture) -> None:
    one, other = ScriptedSource("one", "a:1"), ScriptedSource("other", "b:1")
    with caplog.at_level(logging.INFO, "service.discovery"):
        async with following([], one, other) as (told, metrics):
            await eventually(lambda: told[-1:] == [{"a:1", "b:1"}])
            one.error = "no name server answers"
            await one.looked()
            other.listed = frozenset(["c:1"])
            await eventually(lambda: told[-1] == {"a:1", "c:1"})
            failures = metrics.registry.get_sample_value(
                "pixelpod_frontend_discovery_failures_total", {"source": "scripted"}
            )
            assert failures is not None
            assert 2 <= failures <= one.looks
            one.error, one.listed = None, frozenset(["d:1"])
            await eventually(lambda: told[-1] == {"c:1", "d:1"})
    lines = [(line.levelname, line.source, getattr(line, "kept", None)) for line in caplog.records]
    assert lines == [("WARNING", "one", 1), ("INFO", "one", None)]


async def test_slow_source_delays_no_other() -> None:
    slow, quick = ScriptedSource("slow", "a:1"), ScriptedSource("quick", "b:1")
    slow.hang.clear()
    async with following([], slow, quick) as (told, _):
        await eventually(lambda: told == [{"b:1"}])
        slow.hang.set()
        await eventually(lambda: told[-1] == {"a:1", "b:1"})


async def test_too_many_addresses_are_a_failure() -> None:
    source = ScriptedSource("one", *(f"a{number}:1" for number in range(MOST_ADDRESSES - 1)))
    async with following(["z:1"], source) as (told, _):
        await eventually(lambda: len(told) == 1)
        source.listed = source.listed | {"b:1"}
        await source.looked()
        assert len(told) == 1
        source.listed = frozenset(["b:1"])
        await eventually(lambda: told[-1] == {"b:1", "z:1"})
