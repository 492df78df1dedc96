"""A frontend process with few file descriptors, and peers that hold more connections than it has."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress

import grpc
import psutil
import pytest

from pixelpod.server.bounded_http import THREADS
from pixelpod.server.eviction import roomy
from pixelpod.server.probes import LIMITS, LIVE
from tests.e2e.processes import Process, free_address, start, wait_serving
from tests.e2e.services import PIXELPOD
from tests.raw_http import PREFACE, connections, get, is_closed
from tests.service.conftest import SERVING, Client, eventually

OPEN_FILES = 256
TAKEN = 128
"""Connections that a frontend takes with so many."""
PROBES = LIMITS.per_address
WITHIN_SECONDS = 3.0
"""What a caller waits for an answer here, connecting included. It takes some milliseconds on an idle machine."""
HELD_SECONDS = 2.0
"""How long the frontend's processor time is measured."""


@pytest.fixture
async def frontend(start_group) -> AsyncIterator[tuple[Process, str, str, str]]:
    """A frontend that may open few files, with the addresses of its API, metrics and probes."""
    group = await start_group()
    listen, metrics, probes = free_address(), free_address(), free_address()
    argv = [*PIXELPOD, "serve", "--group", group.address, "--listen", listen, "--metrics", metrics, "--probes", probes]
    limited = ("bash", "-c", f'ulimit -n {OPEN_FILES} && exec "$@"', "bash")
    with start([*limited, *argv, "--drain-delay-seconds", "0"]) as process:
        await asyncio.to_thread(wait_serving, listen, process=process)
        yield process, listen, metrics, probes
        assert await asyncio.to_thread(process.stop) == 0


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


async def _ask(listen: str, probes: str) -> None:
    """Ask for health, an image and liveness, each over a connection of its own."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    async with (
        grpc.aio.insecure_channel(listen, own) as first,
        grpc.aio.insecure_channel(listen, own) as second,
        grpc.aio.insecure_channel(probes, own) as probe,
    ):
        assert await Client(first).health_of() == SERVING
        assert len((await Client(second).generate(WITHIN_SECONDS)).images) == 1
        assert await Client(probe).health_of(LIVE) == SERVING


def _metric(metrics: str, line: str) -> float:
    reply = get(_port(metrics))
    assert reply.status == 200
    (value,) = re.findall(rf"^{re.escape(line)} (\S+)$", reply.body.decode(), re.MULTILINE)
    return float(value)


async def test_idle_connections_beyond_the_open_files_keep_nobody_out(frontend) -> None:
    process, listen, metrics, probes = frontend
    assert f"open_files={OPEN_FILES} max_connections=2048 connections_taken={TAKEN}" in process.log
    watched = psutil.Process(process.pid)
    with ExitStack() as stack:
        for address, number, kept in ((listen, 200, roomy(TAKEN)), (metrics, 50, THREADS), (probes, 50, PROBES)):
            spoken = stack.enter_context(connections(_port(address), number, first_bytes=PREFACE))
            silent = stack.enter_context(connections(_port(address), number))
            await eventually(lambda held=(*spoken, *silent), kept=kept: len(held) - sum(map(is_closed, held)) <= kept)
        for _ in range(5):
            began = time.monotonic()
            await _ask(listen, probes)
            await asyncio.to_thread(_metric, metrics, "pixelpod_frontend_connections")
            assert time.monotonic() - began < WITHIN_SECONDS
        assert watched.num_fds() < OPEN_FILES
        assert watched.num_threads() < 20 + THREADS
        before = sum(watched.cpu_times()[:2])
        await asyncio.sleep(HELD_SECONDS)
        assert sum(watched.cpu_times()[:2]) - before < HELD_SECONDS / 4
        for server, reason in (("calls", "room"), ("probes", "address"), ("metrics", "room")):
            line = f'pixelpod_frontend_connections_closed_total{{reason="{reason}",server="{server}"}}'
            assert await asyncio.to_thread(_metric, metrics, line) > 0
    assert "Traceback" not in process.log


async def test_a_flood_of_connections_ends_with_the_flood(frontend) -> None:
    process, listen, _, probes = frontend
    descriptors = psutil.Process(process.pid).num_fds()
    until = time.monotonic() + HELD_SECONDS
    while time.monotonic() < until:
        with connections(_port(listen), 100, first_bytes=PREFACE, source="127.0.0.2"):
            await asyncio.sleep(0)

    async def answered() -> bool:
        with suppress(grpc.aio.AioRpcError):
            await _ask(listen, probes)
            return True
        return False

    await eventually(answered)
    await eventually(lambda: psutil.Process(process.pid).num_fds() <= descriptors + 5)
    assert "Traceback" not in process.log
