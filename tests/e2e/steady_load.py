"""Requests through the client library at a steady rate, and what became of them."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

import grpc

from pixelpod.client import AsyncClient, Generation, PixelpodError
from pixelpod.client.channel import SERVICE_CONFIG
from pixelpod.v1 import images_pb2, images_pb2_grpc

DEADLINE_SECONDS = 30.0


class PlainClient:
    """A caller without our client library: it has the stubs and the published service config, and calls Generate.

    Args:
        target: The frontend.
        with_ids: Whether it gives its requests ids. Others go another way: nobody can join or repeat them.
    """

    def __init__(self, target: str, with_ids: bool = True) -> None:
        self._with_ids = with_ids
        options = [("grpc.service_config", json.dumps(SERVICE_CONFIG)), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(target, options)

    async def generate(self, prompt: str, *, seed: int, deadline_seconds: float) -> images_pb2.GenerateResponse:
        stub = images_pb2_grpc.ImageGenerationStub(self._channel)
        request_id = uuid.uuid4().hex if self._with_ids else ""
        request = images_pb2.GenerateRequest(prompt=prompt, seed=seed, request_id=request_id)
        return await stub.Generate(request, timeout=deadline_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()


@dataclass
class SteadyLoad:
    """What became of requests so far. Each has a seed of its own, from 0. Use `steady_load`."""

    clients: Sequence[AsyncClient | PlainClient]
    answers: dict[int, Generation | images_pb2.GenerateResponse] = field(default_factory=dict)
    """By seed."""
    seconds: list[float] = field(default_factory=list)
    """Latencies of answers."""
    errors: list[PixelpodError | grpc.aio.AioRpcError] = field(default_factory=list)

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
        except (PixelpodError, grpc.aio.AioRpcError) as error:
            self.errors.append(error)
        else:
            self.seconds.append(time.monotonic() - began)


@asynccontextmanager
async def steady_load(clients: Sequence[AsyncClient | PlainClient], rate: float) -> AsyncIterator[SteadyLoad]:
    """Ask all through the context; at its end all requests have ended."""
    load, stop = SteadyLoad(clients), asyncio.Event()
    running = asyncio.create_task(load.run(rate, stop))
    try:
        yield load
    finally:
        stop.set()
        await running
