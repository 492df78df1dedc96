"""What a source of group addresses is."""

from __future__ import annotations

from typing import Protocol


class SourceFailed(Exception):
    """A source told no addresses that can be used: it can't be read, or lists none, or too many."""


class Source(Protocol):
    """Something that lists addresses of groups and may list others later."""

    kind: str
    """What it is, for metrics: one of few words."""
    name: str
    """Which it is, for people."""

    async def look(self) -> frozenset[str]:
        """Return the addresses listed now, host:port each, at least one.

        Raises:
            SourceFailed: if there are none to be had. The message says why.
        """
