"""A service with twice the work that it can do."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.load import Outcomes, open_loop, quantile
from pixelpod.server.errors import Overloaded, from_call
from pixelpod.v1 import images_pb2, images_pb2_grpc
from tests.e2e.frontends import RunningFrontend
from tests.e2e.timed_groups import TimedGroups

STEP_SECONDS = 0.1
GROUPS = 2
LOAD_SECONDS = 6.0
DEADLINE_SECONDS = 3.0
FACTOR = 2.0
CANCELS = 500


@pytest.fixture
def groups(start_timed_groups: Callable[[int, float], TimedGroups]) -> TimedGroups:
    return start_timed_groups(GROUPS, STEP_SECONDS)


async def test_twice_the_capacity(groups: TimedGroups, service: RunningFrontend) -> None:
    capacity = groups.images_a_second
    load = asyncio.create_task(open_loop(service.address, FACTOR * capacity, LOAD_SECONDS, DEADLINE_SECONDS))
    control_seconds = await _control_plane_seconds(service.address, load)
    outcomes = await load
    sent = outcomes.codes.total()

    # Each has one ending, of a kind that an overload makes, and the frontend counts the same.
    assert set(outcomes.codes) <= {"OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
    assert outcomes.codes["RESOURCE_EXHAUSTED"] > sent / 10
    service.wait_idle()
    assert service.metric("pixelpod_frontend_requests_total") == sent
    assert service.metric("pixelpod_frontend_request_seconds_count") == sent

    # A refusal tells when to come again: to clients of ours, to those that read details, and to gRPC itself.
    refusals = [error for error in outcomes.errors if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED]
    for refusal in refusals:
        error = from_call(refusal)
        assert isinstance(error, Overloaded)
        assert error.reason in {"OVERLOADED", "QUEUE_FULL", "DISPLACED"}
        assert error.retry_after_seconds is not None
        pushback = dict(refusal.trailing_metadata() or ())["grpc-retry-pushback-ms"]
        assert int(pushback) == round(error.retry_after_seconds * 1000) >= 100

    # What can be done is done in time, and hardly anything else. On an idle machine it is all and nothing; first come,
    # first served would answer a tenth in time and compute the rest in vain.
    goodput = _answers_a_second(outcomes) / capacity
    computed = len(groups.computed())
    in_vain = computed - outcomes.ok
    print(f"{dict(outcomes.codes)}; goodput {goodput:.1%} of {capacity:g}/s, {in_vain:g} computed in vain; ", end="")
    print(f"refused in {quantile(outcomes.seconds['RESOURCE_EXHAUSTED'], 0.5) * 1000:.1f} ms (median), ", end="")
    print(f"health and model list in {quantile(control_seconds, 0.9) * 1000:.1f} ms (90 %)")
    assert goodput > 0.7
    assert 0 <= in_vain <= 0.2 * computed
    assert max(outcomes.seconds["OK"]) < DEADLINE_SECONDS + 0.5
    assert quantile(control_seconds, 0.9) < 1.0

    # Afterwards all is as before.
    groups.assert_idle()
    after = await open_loop(service.address, 5.0, 1.0, DEADLINE_SECONDS)
    assert set(after.codes) == {"OK"}


async def test_random_cancels(groups: TimedGroups, service: RunningFrontend) -> None:
    draw = random.Random(0)
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = images_pb2_grpc.ImageGenerationStub(channel)

        async def leave_early() -> str:
            call = stub.GenerateStream(images_pb2.GenerateRequest(prompt="a fox"), timeout=30.0)
            leaving = None
            try:
                async for _ in call:
                    if leaving is None:  # a call that is given up before it arrives is no request
                        leaving = asyncio.get_running_loop().call_later(draw.uniform(0.0, 1.0), call.cancel)
            except asyncio.CancelledError:
                pass  # by the timer
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return (await call.code()).name

        calls = []
        for _ in range(CANCELS):
            calls.append(asyncio.create_task(leave_early()))
            await asyncio.sleep(0.005)
        codes = Counter(await asyncio.gather(*calls))
    assert codes.total() == CANCELS
    assert set(codes) <= {"OK", "CANCELLED", "RESOURCE_EXHAUSTED"}
    assert codes["CANCELLED"] > 100
    service.wait_idle()
    assert service.metric("pixelpod_frontend_requests_total") == CANCELS
    groups.assert_idle()


async def _control_plane_seconds(address: str, load: asyncio.Task[Outcomes]) -> list[float]:
    """Return how long health and the model list took to answer, asked one after the other while the load lasts."""
    taken = []
    async with grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        health, images = health_pb2_grpc.HealthStub(channel), images_pb2_grpc.ImageGenerationStub(channel)
        while not load.done():
            for ask, request in (
                (health.Check, health_pb2.HealthCheckRequest()),
                (images.ListModels, images_pb2.ListModelsRequest()),
            ):
                began = time.monotonic()
                await ask(request, timeout=10.0)
                taken.append(time.monotonic() - began)
            await asyncio.sleep(0.1)
    return taken


def _answers_a_second(outcomes: Outcomes) -> float:
    """Return how many were answered in time each second, from when the groups were busy until the load ended."""
    began, ended = outcomes.began + 1.0, outcomes.began + LOAD_SECONDS
    return sum(began <= at < ended for at in outcomes.answered) / (ended - began)
