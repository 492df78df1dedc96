"""Readers: who answers are sent to, how much each has yet to take, and the watchdog over those that take nothing.

HTTP/2's flow control makes a write wait until its reader has room. A reader that never has would hold its call, its
answer and all that the call reserved for ever, at no cost to itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

import grpc

from pixelpod.server.memory import release_freed_memory

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 0.25
"""How often the watchdog looks for stalled readers and passed deadlines."""

SLOWEST_BYTES_PER_SECOND = 256 * 1024
"""A message may take its reader this long beside the stall limit: gRPC does not report parts of a message as taken."""

DRAIN_STALL_SECONDS = 2.0
"""How long a reader may take nothing while its server stops."""

EndCall: TypeAlias = Callable[[grpc.StatusCode, str], None]
"""Ends a call with a code and a message."""


class Reader:
    """The reader of one call's answer.

    Args:
        readers: All of the server's.
        caller: Whose call it is: its unread bytes add up over all its calls.
        end_call: Ends the call.
    """

    def __init__(self, readers: Readers, caller: str, end_call: EndCall) -> None:
        self.caller = caller
        self.deadline = math.inf
        """When the call ends in any case, by time.monotonic()."""
        self.ended_with: grpc.StatusCode | None = None
        """The code that the watchdog ended the call with; None while it has not."""
        self.unread_bytes = 0
        self.took_at = time.monotonic()
        """When it last took something, or first had something to take."""
        self._readers = readers
        self._end_call = end_call
        self._blocked_until = math.inf

    def add_unread(self, size_bytes: int) -> None:
        """Count bytes that are ready for the reader. May end the call of a reader, this one included, to make room."""
        if self.ended_with is not None:
            return
        if not self.unread_bytes:
            self.took_at = time.monotonic()
        self._readers.count(self, size_bytes)
        self._readers.make_room(self.caller)

    def take(self, size_bytes: int) -> None:
        """Note that the reader took so many bytes."""
        self.took_at = time.monotonic()
        self._readers.count(self, -min(size_bytes, self.unread_bytes))

    @contextmanager
    def taking(self, size_bytes: int) -> Iterator[None]:
        """Watch the write of a message of this size, which goes on within."""
        self.begin_message(size_bytes)
        try:
            yield
        finally:
            self._blocked_until = math.inf
            self.take(size_bytes)

    def begin_message(self, size_bytes: int) -> None:
        """Watch the write of a message of this size until the call ends."""
        self._blocked_until = time.monotonic() + self._readers.stall_seconds + size_bytes / SLOWEST_BYTES_PER_SECOND
        self.add_unread(size_bytes)

    def end(self, code: grpc.StatusCode, message: str) -> None:
        """End the call, unless it was ended already."""
        if self.ended_with is None:
            self.ended_with = code
            self._readers.drop(self)
            self._end_call(code, message)

    def hurry(self, seconds: float) -> None:
        """Give the message that is being written, if any, at most `seconds` more."""
        if self._blocked_until < math.inf:
            self._blocked_until = min(self._blocked_until, time.monotonic() + seconds)

    def check(self, now: float) -> str | None:
        """End the call if its deadline passed, or if its reader is stalled; return which it was."""
        if now >= self.deadline:
            self.end(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                "DEADLINE_EXCEEDED: the call's time ran out before its reader took the whole answer",
            )
            return "deadline"
        if now >= self._blocked_until:
            self.end(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"READER_STALLED: the reader took nothing for {self._readers.stall_seconds:.3g} s; read faster, or ask "
                "for less at a time",
            )
            return "stalled"
        return None


class Readers:
    """All readers of a server.

    Args:
        stall_seconds: How long a reader may take nothing of a message that is being written.
        limit_bytes: How many bytes may be unread in all; None for no limit.
        caller_limit_bytes: The same for each caller.
        on_end: Called with the reason whenever the watchdog ended a call: stalled, deadline or evicted.
    """

    def __init__(
        self,
        stall_seconds: float,
        limit_bytes: int | None = None,
        caller_limit_bytes: int | None = None,
        on_end: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.stall_seconds = stall_seconds
        self.unread_bytes = 0
        """Of all readers together."""
        self._limit_bytes = math.inf if limit_bytes is None else limit_bytes
        self._caller_limit_bytes = math.inf if caller_limit_bytes is None else caller_limit_bytes
        self._on_end = on_end
        self._readers: set[Reader] = set()
        self._by_caller: Counter[str] = Counter()
        self._dropped = False
        """Whether bytes were dropped since the last sweep."""

    def enter(self, caller: str, end_call: EndCall) -> Reader:
        """Return the reader of a call that begins. Call `leave` when its last byte is gone."""
        reader = Reader(self, caller, end_call)
        self._readers.add(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        """Forget the reader of a call that ended."""
        self.count(reader, -reader.unread_bytes)
        self._readers.discard(reader)

    def hurry(self) -> None:
        """From now on end stalled calls after `DRAIN_STALL_SECONDS`: the server stops."""
        self.stall_seconds = min(self.stall_seconds, DRAIN_STALL_SECONDS)
        for reader in self._readers:
            reader.hurry(self.stall_seconds)

    async def watch(self) -> None:
        """End the calls of stalled readers, and those past their deadline, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()

    def sweep(self) -> None:
        """End the calls that are to be ended now."""
        now, dropped = time.monotonic(), self._dropped
        self._dropped = False
        for reader in tuple(self._readers):
            if reader.ended_with is None and (reason := reader.check(now)) is not None:
                self._ended(reader, reason)
        if dropped and not self._dropped:  # by now what gRPC held of it is free too
            release_freed_memory()

    def count(self, reader: Reader, change_bytes: int) -> None:
        """Add to the unread bytes of a reader, or take from them."""
        reader.unread_bytes += change_bytes
        self.unread_bytes += change_bytes
        self._by_caller[reader.caller] += change_bytes
        if not self._by_caller[reader.caller]:
            del self._by_caller[reader.caller]

    def drop(self, reader: Reader) -> None:
        """Count what a reader has not taken as dropped."""
        self._dropped = self._dropped or reader.unread_bytes > 0
        self.count(reader, -reader.unread_bytes)

    def make_room(self, caller: str) -> None:
        """End calls until the limits are kept: of the caller that is over its own, or else of the one that has most.

        The reader that has taken nothing for the longest time goes first.
        """
        while self._by_caller[caller] > self._caller_limit_bytes:
            self._evict(caller)
        while self.unread_bytes > self._limit_bytes:
            self._evict(max(self._by_caller, key=self._by_caller.__getitem__))

    def _evict(self, caller: str) -> None:
        theirs = (reader for reader in self._readers if reader.caller == caller and reader.unread_bytes)
        slowest = min(theirs, key=lambda reader: reader.took_at)
        slowest.end(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "ANSWERS_UNREAD: too many bytes of answers wait to be read, and this one waited longest; read faster, or "
            "have fewer requests in flight",
        )
        self._ended(slowest, "evicted")

    def _ended(self, reader: Reader, reason: str) -> None:
        self._on_end(reason)
        logger.warning("ended a call whose answer was not read", extra={"caller": reader.caller, "reason": reason})


_UNWATCHED = Reader(Readers(math.inf), "", lambda code, message: None)

_current: ContextVar[Reader] = ContextVar("reader")


def current_reader() -> Reader:
    """Return the reader of the call that this task handles; one that nobody watches outside of a server."""
    return _current.get(_UNWATCHED)


def enter_reader(reader: Reader) -> None:
    """From now on this task handles the call of `reader`. gRPC gives every call a task of its own."""
    _current.set(reader)
