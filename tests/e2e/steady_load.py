"""Requests through the client library at a steady rate, and what became of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pixelpod.client import AsyncClient, Generation, PixelpodError

DEADLINE_SECONDS = 30.0


@dataclass
class SteadyLoad:
    """What became of requests so far. Each has a seed of its own, from 0. Use `steady_load`."""

    clients: Sequence[AsyncClient]
    answers: dict[int, Generation] = field(default_factory=dict)
    """By seed."""
    seconds: list[float] = field(default_factory=list)
    """Latencies of answers."""
    errors: list[PixelpodError] = field(default_factory=list)

    async def run(self, rate: float, stop: asyncio.Event) -> None:
        """Ask so many times a second, through one client after the other, until `stop`; then wait for all answers."""
        draw, seed = random.Random(0), 0
        async with asyncio.TaskGroup() as calls:
            while not stop.is_set():
                calls.create_task(self._ask(seed))
                seed += 1
                await asyncio.sleep(draw.expovariate(rate))

    async def _ask(self, seed: int) -> None:
        client, began = self.clients[seed % len(self.clients)], time.monotonic()
        try:
            self.answers[seed] = await client.generate("a fox", seed=seed, deadline_seconds=DEADLINE_SECONDS)
        except PixelpodError as error:
            self.errors.append(error)
        else:
            self.seconds.append(time.monotonic() - began)


@asynccontextmanager
async def steady_load(clients: Sequence[AsyncClient], rate: float) -> AsyncIterator[SteadyLoad]:
    """Ask all through the context; at its end all requests have ended."""
    load, stop = SteadyLoad(clients), asyncio.Event()
    running = asyncio.create_task(load.run(rate, stop))
    try:
        yield load
    finally:
        stop.set()
        await running
