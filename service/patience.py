"""Waiting for others without taking one's own absence for their silence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

LOOKS = 10
"""How many times within its wait a waiter makes sure that it runs itself."""

Result = TypeVar("Result")


async def within(seconds: float, awaitable: Awaitable[Result]) -> Result:
    """Return what `awaitable` returns, if that takes at most `seconds` of this process's own running time.

    A process that did not run for a while (stopped, starved, its virtual machine moved) finds everything late at once,
    though the others were there all along and what they sent waits to be read. It counts such a while as a tenth of
    `seconds`, whatever its length.

    Raises:
        TimeoutError: if it takes longer; `awaitable` is cancelled then.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        for _ in range(LOOKS):
            done, _ = await asyncio.wait({task}, timeout=seconds / LOOKS)
            if done:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
