"""Callers that read nothing cost only their own calls: no place on a group, a bounded share of memory, and no drain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import psutil
import pytest

from pixelpod.v1 import images_pb2
from tests.service.conftest import PROMPT, WAIT_SECONDS, Client, eventually
from tests.stalled_readers import StalledReader
from tests.tokens import bearer, entry, write_tokens

CALLS = 120
METHOD = "/pixelpod.v1.ImageGeneration/"
Connect = Callable[[Client], Awaitable[StalledReader]]


@pytest.fixture
async def stalled() -> AsyncIterator[Connect]:
    """Connect readers to a frontend that take nothing."""
    opened: list[StalledReader] = []

    async def connect(client: Client) -> StalledReader:
        assert client.frontend is not None
        opened.append(await StalledReader.connect(client.frontend.port))
        return opened[-1]

    yield connect
    for each in opened:
        await each.close()


def request(request_id: str = "") -> images_pb2.GenerateRequest:
    return images_pb2.GenerateRequest(prompt=PROMPT, request_id=request_id)


def metric(client: Client, name: str, **labels: str) -> float:
    assert client.frontend is not None
    return client.frontend.metrics.registry.get_sample_value(f"pixelpod_frontend_{name}", labels) or 0.0


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
async def test_nothing_is_reserved_for_a_reader_that_has_not_taken_accepted(
    start_group, start_frontend, stalled, named: bool
) -> None:
    group = await start_group()
    await group.publish(free_slots=1)
    client = await start_frontend(group, reader_stall_seconds=1.0)
    reader = await stalled(client)
    for number in range(5):
        await reader.call(METHOD + "GenerateStream", request(f"r{number}" if named else ""))
    await eventually(lambda: client.in_flight == 5)
    began = time.monotonic()
    await client.generate()
    assert time.monotonic() - began < 1, "the only place was free"
    assert len(group.executed) == 1
    await eventually(lambda: client.in_flight == 0)
    assert len(reader.ended) == 5
    assert all(b"READER_STALLED" in trailers for trailers in reader.ended.values())
    assert reader.data_bytes == 0
    assert metric(client, "readers_ended_total", reason="stalled") == 5
    assert metric(client, "requests_total", model="tiny", code="RESOURCE_EXHAUSTED") == 5
    assert len(group.executed) == 1, "no group ever computed for them"
    assert metric(client, "unread_bytes") == 0


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
async def test_the_cap_ends_a_call_that_is_blocked_in_a_write(start_group, start_frontend, named: bool) -> None:
    group = await start_group()
    group.image = os.urandom(20_000_000)
    client = await start_frontend(group, max_request_seconds=1.0)
    call = client.images.GenerateStream(client.request(request_id="r" if named else ""))
    await call.read()
    began = time.monotonic()
    await eventually(lambda: client.in_flight == 0)
    assert 0.5 < time.monotonic() - began < 2
    assert group.running == 0
    assert metric(client, "requests_total", model="tiny", code="DEADLINE_EXCEEDED") == 1
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
async def test_unary_answers_that_nobody_reads_are_bounded(start_group, start_frontend, stalled, named: bool) -> None:
    group = await start_group()
    group.image = bytes(300_000)
    await group.publish(free_slots=64)
    client = await start_frontend(group, caller_unread_bytes=1_500_000, unread_bytes=2_000_000, reader_stall_seconds=2)
    reader = await stalled(client)
    for number in range(20):
        await reader.call(METHOD + "Generate", request(f"r{number}" if named else ""))
    await eventually(lambda: len(reader.ended) >= 15)
    assert metric(client, "unread_bytes") <= 1_500_000
    assert client.in_flight == 20 - len(reader.ended) > 0, "a call lasts until its last byte is gone"
    began = time.monotonic()
    await client.generate()
    assert time.monotonic() - began < 1
    await eventually(lambda: client.in_flight == 0)
    assert metric(client, "unread_bytes") == 0
    assert metric(client, "readers_ended_total", reason="evicted") >= 15
    ended = metric(client, "readers_ended_total", reason="evicted") + metric(
        client, "readers_ended_total", reason="stalled"
    )
    assert ended == 20


async def test_a_call_counts_against_its_caller_until_its_bytes_are_gone(
    start_group, start_frontend, stalled, tmp_path
) -> None:
    group = await start_group()
    group.image = bytes(300_000)
    tokens = write_tokens(tmp_path / "tokens.json", entry("shop", "the-token", max_concurrent_requests=2))
    client = await start_frontend(group, tokens_file=tokens, reader_stall_seconds=1.5)
    reader = await stalled(client)
    for _ in range(5):
        await reader.call(METHOD + "Generate", request(), *bearer("the-token"))
    await eventually(lambda: len(reader.ended) == 3)
    assert all(b"may have 2" in trailers for trailers in reader.ended.values())
    assert len(group.executed) == 2
    await eventually(lambda: client.in_flight == 0)
    answer = await client.images.Generate(request(), metadata=bearer("the-token"), timeout=WAIT_SECONDS)
    assert answer.images[0].data == group.image


async def test_stalled_streams_do_not_grow_the_kept_answers(start_group, start_frontend, stalled) -> None:
    group = await start_group()
    group.image = bytes(4_000_000)
    await group.publish(free_slots=64)
    client = await start_frontend(
        group, answers_kept_bytes=1_000_000, caller_unread_bytes=20_000_000, reader_stall_seconds=2.0
    )
    calls = [client.images.GenerateStream(client.request(request_id=f"r{number}")) for number in range(12)]
    for call in calls:
        await call.read()
    await eventually(lambda: len(group.executed) == 12 and group.running == 0)
    assert metric(client, "unread_bytes") <= 20_000_000
    await eventually(lambda: client.in_flight == 0)
    assert metric(client, "unread_bytes") == 0
    assert metric(client, "answers_kept_bytes") == 0


async def test_a_drain_does_not_wait_for_stalled_readers(start_group, start_frontend) -> None:
    group = await start_group()
    group.image = os.urandom(20_000_000)
    client = await start_frontend(group, drain_seconds=20)
    call = client.images.GenerateStream(client.request())
    await call.read()
    await eventually(lambda: bool(group.executed) and group.running == 0)
    began = time.monotonic()
    assert client.frontend is not None
    await client.frontend.stop()
    assert time.monotonic() - began < 5


async def test_a_slow_reader_gets_its_whole_answer(start_group, start_frontend) -> None:
    """It takes something again and again, and so is never stalled."""
    group = await start_group()
    group.image = os.urandom(8_000_000)
    client = await start_frontend(group, reader_stall_seconds=1.0)
    data = b""
    async for event in client.images.GenerateStream(client.request()):
        if event.HasField("image_chunk"):
            data += event.image_chunk.data
            await asyncio.sleep(0.25)
    assert data == group.image


async def test_memory_is_given_back(start_group, serve_process) -> None:
    group = await start_group()
    group.image = bytes(1_500_000)
    await group.publish(free_slots=64)
    process, client, port = await serve_process(
        group.address, READER_STALL_SECONDS="1", UNREAD_BYTES="50000000", CALLER_UNREAD_BYTES="50000000"
    )
    await client.serving()
    await client.generate()
    memory = psutil.Process(process.pid).memory_info
    before = memory().rss
    reader = await StalledReader.connect(port)
    try:
        for _ in range(CALLS):
            await reader.call(METHOD + "Generate", request())
        most = 0

        async def all_ended() -> bool:
            nonlocal most
            most = max(most, memory().rss)
            return len(reader.ended) == CALLS

        await eventually(all_ended, 3 * WAIT_SECONDS)
    finally:
        await reader.close()
    # 180 MB of answers were made; 50 MB may be unread, and gRPC holds a copy of each.
    assert most - before < 150_000_000
    await eventually(lambda: memory().rss - before < 20_000_000)
    await client.generate()
