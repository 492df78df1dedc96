"""Running another program to its end."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping


async def run_program(
    *argv: str, environment: Mapping[str, str] | None = None, stdout: int | None = None, stderr: int | None = None
) -> tuple[int, str]:
    """Return a program's exit code and, where `stderr` is a pipe, its messages. Cancelling this kills it.

    It gets a process group of its own, so that Ctrl-C in a terminal reaches only this process.

    Args:
        argv: Program and arguments.
        environment: Its environment; None: this process's own.
        stdout: As for subprocess; None: this process's own.
        stderr: As for subprocess; None: this process's own.
    """
    process = await asyncio.create_subprocess_exec(
        *argv, env=environment, stdin=DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
    )
    try:
        _, messages = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    return await process.wait(), (messages or b"").decode(errors="replace")
