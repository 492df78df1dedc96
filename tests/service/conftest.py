"""Stub groups and real frontends, started in the test's event loop or as processes, all ended with the test."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pixelpod.v1 import images_pb2, images_pb2_grpc
from service.frontend import Frontend
from service.settings import FrontendSettings
from tests.service.dns_stub import DnsStub
from tests.service.stub_group import StubGroup

REPOSITORY = Path(__file__).parent.parent.parent
WAIT_SECONDS = 10.0
PROMPT = "a red house"
RUN = "import asyncio; from service.frontend import run; from service.settings import FrontendSettings; "
RUN += "asyncio.run(run(FrontendSettings()))"
SERVING = health_pb2.HealthCheckResponse.SERVING


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def eventually(met: Callable[[], bool | Awaitable[bool]], seconds: float = WAIT_SECONDS) -> None:
    """Wait until `met` returns true; fail after a bounded time."""
    async with asyncio.timeout(seconds):
        while True:
            result = met()
            if await result if isinstance(result, Awaitable) else result:
                return
            await asyncio.sleep(0.01)


@dataclass
class Client:
    """What a caller sees of one frontend, over a channel with default options."""

    channel: grpc.aio.Channel
    frontend: Frontend | None = None

    def __post_init__(self) -> None:
        self.images = images_pb2_grpc.ImageGenerationStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    @property
    def in_flight(self) -> float | None:
        """Requests that the frontend has in flight, by its own gauge."""
        assert self.frontend is not None
        return self.frontend.metrics.registry.get_sample_value("pixelpod_frontend_in_flight")

    async def health_of(self, service: str = "") -> int:
        answer = await self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_SECONDS)
        return answer.status

    async def serving(self) -> None:
        """Wait until health says SERVING."""

        async def is_serving() -> bool:
            return await self.health_of() == SERVING

        await eventually(is_serving)

    @staticmethod
    def request(**fields: object) -> images_pb2.GenerateRequest:
        return images_pb2.GenerateRequest(**{"prompt": PROMPT, **fields})

    async def events(self, deadline_seconds: float = WAIT_SECONDS, **fields: object) -> list[images_pb2.GenerateEvent]:
        """Return all events of a GenerateStream."""
        call = self.images.GenerateStream(self.request(**fields), timeout=deadline_seconds)
        return [event async for event in call]

    async def generate(
        self, deadline_seconds: float | None = WAIT_SECONDS, **fields: object
    ) -> images_pb2.GenerateResponse:
        """Return the answer of Generate."""
        return await self.images.Generate(self.request(**fields), timeout=deadline_seconds)


@pytest.fixture
async def start_group() -> AsyncIterator[Callable[..., Awaitable[StubGroup]]]:
    """Start a stub group in the test's loop."""
    started: list[StubGroup] = []

    async def start(*args: object, port: int = 0, host: str = "127.0.0.1", **kwargs: object) -> StubGroup:
        group = StubGroup(*args, **kwargs)
        await group.start(port, host)
        started.append(group)
        return group

    yield start
    for group in started:
        await group.stop()


@pytest.fixture
async def start_frontend() -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    """Start a frontend in the test's loop, on free ports, without drain delay; settings can be overridden."""
    started: list[Client] = []

    async def start(
        *groups: StubGroup | str, ready: bool = True, tls: grpc.ChannelCredentials | None = None, **settings: object
    ) -> Client:
        addresses = [group if isinstance(group, str) else group.address for group in groups]
        chosen = {"listen": "127.0.0.1:0", "metrics": "127.0.0.1:0", "drain_delay_seconds": 0, "drain_seconds": 1}
        frontend = Frontend(FrontendSettings(groups=addresses, **{**chosen, **settings}))
        await frontend.start()
        address = f"127.0.0.1:{frontend.port}"
        channel = grpc.aio.secure_channel(address, tls) if tls else grpc.aio.insecure_channel(address)
        client = Client(channel, frontend)
        started.append(client)
        if ready:
            await client.serving()
        return client

    yield start
    for client in started:
        await client.channel.close()
        assert client.frontend is not None
        await client.frontend.stop()


@pytest.fixture
def start_process() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python process at the repository's root; it is killed after the test if it still runs."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=WAIT_SECONDS)


@pytest.fixture
async def serve_process(
    start_process: Callable[..., subprocess.Popen[str]],
) -> AsyncIterator[Callable[..., Awaitable[tuple[subprocess.Popen[str], Client, int]]]]:
    """Start a frontend process for a group and connect to it; drain delay and drain are a second each."""
    clients: list[Client] = []

    async def serve(group_address: str, **settings: str) -> tuple[subprocess.Popen[str], Client, int]:
        port = free_port()
        environment = {
            "GROUPS": group_address,
            "LISTEN": f"127.0.0.1:{port}",
            "METRICS": "127.0.0.1:0",
            "DRAIN_DELAY_SECONDS": "0.5",
            "DRAIN_SECONDS": "1",
            "LOG_FORMAT": "json",
            **settings,
        }
        process = start_process("-c", RUN, **{f"PIXELPOD_FRONTEND_{key}": value for key, value in environment.items()})
        client = Client(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
        clients.append(client)
        await client.health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=WAIT_SECONDS)
        return process, client, port

    yield serve
    for client in clients:
        await client.channel.close()


@pytest.fixture
async def held_group(start_process: Callable[..., subprocess.Popen[str]]) -> tuple[subprocess.Popen[str], str]:
    """A stub group in a process of its own, with its address; every request stops after its first step."""
    process = start_process("-m", "tests.service.stub_group", STUB_HOLD="1")
    assert process.stdout is not None
    return process, (await asyncio.to_thread(process.stdout.readline)).strip()


@pytest.fixture
async def name_server() -> AsyncIterator[DnsStub]:
    """A name server without records."""
    server = DnsStub()
    await server.start()
    yield server
    await server.stop()
