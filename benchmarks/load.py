"""Load on a server of ImageGeneration: some callers at once, or requests at a rate, and what became of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pixelpod.v1 import images_pb2, images_pb2_grpc


@dataclass
class Outcomes:
    """What became of requests."""

    codes: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Latencies by code."""
    errors: list[grpc.aio.AioRpcError] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    answered: list[float] = field(default_factory=list)
    """When each OK came, by time.monotonic()."""

    def note(self, code: str, seconds: float) -> None:
        self.codes[code] += 1
        self.seconds.setdefault(code, []).append(seconds)
        if code == "OK":
            self.answered.append(time.monotonic())

    @property
    def ok(self) -> int:
        return self.codes["OK"]


async def ask(stub: images_pb2_grpc.ImageGenerationStub, deadline_seconds: float, outcomes: Outcomes) -> None:
    """Make one request."""
    began = time.monotonic()
    try:
        await stub.Generate(images_pb2.GenerateRequest(prompt="a red fox"), timeout=deadline_seconds)
        code = "OK"
    except grpc.aio.AioRpcError as error:
        code = error.code().name
        outcomes.errors.append(error)
    outcomes.note(code, time.monotonic() - began)


async def closed_loop(address: str, callers: int, seconds: float, deadline_seconds: float = 30.0) -> float:
    """Return the answers a second that so many callers get within the time, each asking again once it is answered."""
    outcomes, until = Outcomes(), time.monotonic() + seconds

    async def call(stub: images_pb2_grpc.ImageGenerationStub) -> None:
        while time.monotonic() < until:
            await ask(stub, deadline_seconds, outcomes)

    async with grpc.aio.insecure_channel(address) as channel:
        stub = images_pb2_grpc.ImageGenerationStub(channel)
        await asyncio.gather(*(call(stub) for _ in range(callers)))
    return sum(at < until for at in outcomes.answered) / seconds


async def open_loop(
    address: str, rate: float, seconds: float, deadline_seconds: float, seed: int = 0, channels: int = 4
) -> Outcomes:
    """Make requests at random times, so many a second on average, whatever becomes of them; wait for all of them."""
    outcomes, draw = Outcomes(), random.Random(seed)
    connections = [grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(channels)]
    stubs = [images_pb2_grpc.ImageGenerationStub(channel) for channel in connections]
    loop, began = asyncio.get_running_loop(), time.monotonic()
    tasks, at = [], 0.0
    while at < seconds:
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        tasks.append(loop.create_task(ask(stubs[len(tasks) % channels], deadline_seconds, outcomes)))
        at += draw.expovariate(rate)
    await asyncio.gather(*tasks)
    for channel in connections:
        await channel.close()
    return outcomes


async def health_seconds(address: str, every_seconds: float, stop: Callable[[], bool]) -> list[float]:
    """Return how long health took to answer, asked again and again until told to stop."""
    taken = []
    async with grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while not stop():
            began = time.monotonic()
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
            taken.append(time.monotonic() - began)
            await asyncio.sleep(every_seconds)
    return taken


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies; 0 without any."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0
