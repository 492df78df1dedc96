"""Child processes that live and end together."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from pixelpod.lifeline import end_with_parent

T = TypeVar("T")


class ChildEnded(Exception):
    """A child process ended by itself.

    Args:
        name: Which one.
        exit_code: What it ended with; minus the signal's number if a signal ended it.
    """

    def __init__(self, name: str, exit_code: int) -> None:
        how = f"exit code {exit_code}" if exit_code >= 0 else f"signal {signal.Signals(-exit_code).name}"
        super().__init__(f"the {name} ended with {how}")
        self.name = name
        self.exit_code = exit_code


@dataclass(frozen=True)
class _Child:
    name: str
    process: asyncio.subprocess.Process
    ended: asyncio.Task[int]


class Supervisor:
    """Starts children, tells when one ends, and stops all of them when its block is left, however that happens.

    Children get a process group of their own, so that Ctrl-C in a terminal reaches only this process, which stops
    them in order. When this process is killed, so are they. An asynchronous context manager.

    Args:
        grace_seconds: How long a child may take from SIGTERM to its end; then it is killed.
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._children: list[_Child] = []

    async def start(self, name: str, argv: Sequence[str]) -> None:
        """Start a child.

        Args:
            name: What messages call it.
            argv: Program and arguments.
        """
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
        self._children.append(_Child(name, process, asyncio.create_task(process.wait())))

    async def watch(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` while all children live, and return its result.

        Raises:
            ChildEnded: as soon as a child ends; `work` is cancelled then.
        """
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task, *(child.ended for child in self._children)}, return_when=asyncio.FIRST_COMPLETED)
            for child in self._children:
                if child.ended.done():
                    raise ChildEnded(child.name, child.ended.result())
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        """Stop the children, the last started first. Cancelling this kills them all at once."""
        try:
            for child in reversed(self._children):
                with suppress(ProcessLookupError):
                    child.process.terminate()
                await asyncio.wait({child.ended}, timeout=self._grace_seconds)
                _kill(child)
        finally:
            for child in self._children:
                _kill(child)
            await asyncio.gather(*(child.ended for child in self._children))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()


def _kill(child: _Child) -> None:
    """Kill a child that still runs, and what it started and is still in its process group."""
    if not child.ended.done():
        with suppress(ProcessLookupError):
            os.killpg(child.process.pid, signal.SIGKILL)
