"""Silence of others is told from absence of one's own."""

from __future__ import annotations

import asyncio
import time

import pytest

from service.patience import within


async def test_result() -> None:
    assert await within(1.0, asyncio.sleep(0.01, "result")) == "result"


async def test_error() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await within(1.0, fail())


async def test_too_long_is_cancelled() -> None:
    ended = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await within(0.2, hang())
    assert 0.2 <= time.monotonic() - began < 2
    async with asyncio.timeout(2):
        await ended.wait()


async def test_time_that_the_process_did_not_run_does_not_count() -> None:
    async def answer() -> str:
        await asyncio.sleep(0)
        time.sleep(1.0)  # noqa: ASYNC251 -- as a stopped process
        for _ in range(20):  # what came meanwhile takes a few turns of the loop to read
            await asyncio.sleep(0)
        return "read"

    assert await within(0.5, answer()) == "read"


async def test_cancelled_waiter_cancels() -> None:
    inner = asyncio.get_running_loop().create_future()
    waiter = asyncio.create_task(within(5.0, inner))
    await asyncio.sleep(0.01)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert inner.cancelled()
