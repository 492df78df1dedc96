"""A group and a frontend on this machine: started together, watched, and stopped together."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pixelpod.commands.failure import CommandFailed
from pixelpod.commands.readiness import until_serving
from pixelpod.commands.supervisor import ChildEnded, Supervisor
from pixelpod.exit_codes import ExitCode

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Deployment:
    """What to run, and where it answers."""

    group_argv: tuple[str, ...]
    """Program and arguments of the group."""
    group_address: str
    """Where the group's endpoint answers."""
    frontend_argv: tuple[str, ...]
    """Program and arguments of the frontend."""
    frontend_address: str
    """Where the frontend answers."""
    ready_seconds: float = 1800.0
    """How long weights may load and buckets compile."""
    grace_seconds: float = 5.0
    """How long each process may take to stop; then it is killed."""

    async def run(self, tell: Callable[[str], None], use: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run both processes until `use` ends or this is cancelled. None of them is left afterwards.

        Args:
            tell: Called with a sentence about what is waited for.
            use: What to do once the frontend serves.

        Raises:
            CommandFailed: if a process ends by itself, or nothing serves in time.
        """
        async with Supervisor(self.grace_seconds) as supervisor:
            # Stopped in the opposite order: the frontend first.
            await supervisor.start("group", self.group_argv)
            await supervisor.start("frontend", self.frontend_argv)
            try:
                async with asyncio.timeout(self.ready_seconds):
                    await supervisor.watch(until_serving(self.frontend_address, self.group_address, tell))
                await supervisor.watch(use())
            except TimeoutError as error:
                raise CommandFailed(f"nothing serves after {self.ready_seconds:g} s", ExitCode.FAILED) from error
            except ChildEnded as error:
                raise CommandFailed(str(error), _exit_code_after(error)) from error


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Do `work` until SIGINT, SIGTERM or SIGHUP cancels it; a second signal also cancels its cleaning up."""
    task = asyncio.create_task(work)
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


def _exit_code_after(ended: ChildEnded) -> ExitCode:
    """Return the exit code for a process's end: its own where that explains something."""
    if ended.exit_code in (ExitCode.REFUSED, ExitCode.ADDRESS_IN_USE):
        return ExitCode(ended.exit_code)
    return ExitCode.FAILED
