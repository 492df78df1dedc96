"""SIGTERM to a frontend and to a group that have work, while more keeps coming: each caller gets a status, in time."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable

import grpc
import psutil
import pytest

from pixelpod.v1 import images_pb2, images_pb2_grpc
from tests.e2e.frontends import frontend
from tests.e2e.processes import wait_not_serving, wait_until
from tests.e2e.timed_groups import TimedGroups

STEP_SECONDS = 0.05
LONG_STEPS = 15
DRAIN_DELAY_SECONDS = 2.0
PAUSE_SECONDS = 0.1
"""Between the requests that keep coming."""
NOBODY = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
"""What gRPC says where nobody listens any more, or just stopped to."""


@pytest.fixture
def groups(start_timed_groups: Callable[[int, float], TimedGroups]) -> TimedGroups:
    return start_timed_groups(1, STEP_SECONDS)


@pytest.fixture
async def stub_of() -> AsyncIterator[Callable[[str], images_pb2_grpc.ImageGenerationStub]]:
    """Connect to a frontend; nothing is tried again."""
    channels = []

    def connect(address: str) -> images_pb2_grpc.ImageGenerationStub:
        channels.append(grpc.aio.insecure_channel(address, [("grpc.enable_retries", 0)]))
        return images_pb2_grpc.ImageGenerationStub(channels[-1])

    yield connect
    for channel in channels:
        await channel.close()


async def code_of(stub: images_pb2_grpc.ImageGenerationStub, steps: int = 1) -> grpc.StatusCode:
    """Return what a request ends with."""
    try:
        await stub.Generate(images_pb2.GenerateRequest(prompt="a fox", steps=steps), timeout=30.0)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_a_frontend_that_stops_serves_through_its_drain_delay(groups: TimedGroups, stub_of) -> None:
    delay = ("--drain-delay-seconds", str(DRAIN_DELAY_SECONDS))
    with frontend(groups.addresses, *delay) as stopping:
        stub = stub_of(stopping.address)
        accepted = [asyncio.create_task(code_of(stub, LONG_STEPS)) for _ in range(6)]
        await asyncio.to_thread(_wait_in_flight, groups, 6)
        stopping.process.send(signal.SIGTERM)
        began = time.monotonic()
        await asyncio.to_thread(wait_not_serving, stopping.address)
        later = []
        while time.monotonic() < began + DRAIN_DELAY_SECONDS + 1.0:
            later.append((time.monotonic() - began, asyncio.create_task(code_of(stub))))
            await asyncio.sleep(PAUSE_SECONDS)
        assert await asyncio.gather(*accepted) == [grpc.StatusCode.OK] * 6
        codes = [(at, await call) for at, call in later]
        assert await asyncio.to_thread(stopping.process.wait, 10.0) == 0
    in_delay = [code for at, code in codes if at < DRAIN_DELAY_SECONDS - PAUSE_SECONDS]
    assert len(in_delay) > 5
    assert set(in_delay) == {grpc.StatusCode.OK}
    assert codes[-1][1] == grpc.StatusCode.UNAVAILABLE
    assert {code for _, code in codes} <= {grpc.StatusCode.OK} | NOBODY
    _assert_free(stopping.address)
    groups.assert_idle()


async def test_a_group_that_stops_finishes_what_it_accepted(groups: TimedGroups, stub_of) -> None:
    with frontend(groups.addresses, "--drain-delay-seconds", "0") as service:
        stub, (group,) = stub_of(service.address), groups.all
        accepted = [asyncio.create_task(code_of(stub, LONG_STEPS)) for _ in range(6)]
        await asyncio.to_thread(_wait_in_flight, groups, 6)
        ending = asyncio.create_task(asyncio.to_thread(group.end, signal.SIGTERM))
        await asyncio.to_thread(wait_not_serving, service.address)
        assert await code_of(stub) == grpc.StatusCode.UNAVAILABLE
        assert await asyncio.gather(*accepted) == [grpc.StatusCode.OK] * 6
        await ending
        assert not psutil.pid_exists(group.pids[-1])
        service.wait_idle()
        assert service.process.stop() == 0
    _assert_free(group.address)


def _wait_in_flight(groups: TimedGroups, number: int) -> None:
    def in_flight() -> float:
        return sum(group.metric("pixelpod_group_in_flight") for group in groups.all)

    wait_until(lambda: in_flight() == number, 10.0, lambda: f"{in_flight():g} in flight, not {number}")


def _assert_free(address: str) -> None:
    """Assert that another server may have the port."""
    host, port = address.split(":")
    socket.create_server((host, int(port))).close()
