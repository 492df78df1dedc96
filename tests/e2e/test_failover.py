"""Three groups, of which one after the other is killed or stopped under load: no caller notices but by the time."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import grpc
import pytest

from benchmarks.load import quantile
from pixelpod.client import AsyncClient
from pixelpod.server.errors import from_call
from pixelpod.v1 import images_pb2, images_pb2_grpc
from tests.e2e.frontends import RunningFrontend
from tests.e2e.processes import wait_until
from tests.e2e.steady_load import PlainClient, steady_load
from tests.e2e.timed_groups import TimedGroup, TimedGroups

GROUPS = 3
STEP_SECONDS = 0.1
STEPS_OF_SECONDS = 20
"""So many steps that a group can be killed within them."""
RATE = 10.0
"""Requests a second: half of what two groups compute."""


@pytest.fixture
def groups(start_timed_groups: Callable[[int, float], TimedGroups]) -> TimedGroups:
    return start_timed_groups(GROUPS, STEP_SECONDS)


@pytest.mark.parametrize(
    ("faults", "pause_seconds"),
    [(3, 3.0), pytest.param(12, 10.0, marks=[pytest.mark.slow, pytest.mark.timeout(400)])],
    ids=["short", "two-minutes"],
)
async def test_no_caller_notices_the_death_of_a_group(
    groups: TimedGroups, service: RunningFrontend, faults: int, pause_seconds: float
) -> None:
    await asyncio.to_thread(service.wait_groups, GROUPS)
    recoveries, broken = [], set()
    callers = AsyncClient(service.address), PlainClient(service.address, with_ids=False)
    async with callers[0], callers[1], steady_load(callers, RATE) as load:
        for number in range(faults):
            await asyncio.sleep(pause_seconds)
            group = groups.all[number % GROUPS]
            broken.add(group.pids[-1])
            await _wait_busy([group])
            began = time.monotonic()
            await (_kill(group) if number % 2 == 0 else _stop_for_a_while(group, service))
            await asyncio.to_thread(service.wait_groups, GROUPS)
            recoveries.append(time.monotonic() - began)
        await asyncio.sleep(1.0)

    sent_again = service.metric("pixelpod_frontend_sent_again_total")
    print(f"{faults} groups lost; {len(load.answers)} answers, {len(load.errors)} errors; ", end="")
    print(f"{sent_again:g} requests sent again; all groups there again after {max(recoveries):.1f} s (worst); ", end="")
    print(f"latency {quantile(load.seconds, 0.5):.2f} s (median), {max(load.seconds):.2f} s (worst)")
    assert load.errors == []
    assert sent_again > 0, "no fault hit a request"
    assert [load.answers[seed].images[0].seed for seed in range(len(load.answers))] == list(range(len(load.answers)))

    # What was computed twice was lost once, with its group.
    names = {pid: group.name for group in groups.all for pid in group.pids}
    pids: dict[int, list[int]] = defaultdict(list)
    for each in groups.computed():
        pids[each.seed].append(each.pid)
    assert set(pids) == set(load.answers)
    for seed, answer in load.answers.items():
        assert len(pids[seed]) <= 2
        assert len([pid for pid in pids[seed] if pid not in broken]) <= 1
        assert answer.group in {names[pid] for pid in pids[seed]}
    service.wait_idle()
    assert service.metric("pixelpod_frontend_requests_total") == len(load.answers)
    groups.assert_idle()


async def test_retries_with_one_id_while_their_group_is_killed(groups: TimedGroups, service: RunningFrontend) -> None:
    await asyncio.to_thread(service.wait_groups, GROUPS)
    request = images_pb2.GenerateRequest(prompt="a fox", request_id="the-same", steps=STEPS_OF_SECONDS)
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = images_pb2_grpc.ImageGenerationStub(channel)
        calls = [asyncio.ensure_future(_answer(stub, request)) for _ in range(5)]
        computing = await _wait_busy(groups.all)
        await asyncio.to_thread(computing.end, signal.SIGKILL)
        late = await _answer(stub, request)
        answers = [*await asyncio.gather(*calls), await _answer(stub, request), late]
    assert {(answer.images[0].sha256, answer.images[0].seed, answer.group) for answer in answers} == {
        (late.images[0].sha256, late.images[0].seed, late.group)
    }
    assert late.group != computing.name
    assert [each.seed for each in groups.computed()] == [late.images[0].seed], "computed to the end once"
    service.wait_idle()
    assert service.metric("pixelpod_frontend_sent_again_total") == 1


@pytest.mark.parametrize("request_id", ["", "the-same"], ids=["whole", "streamed"])
async def test_a_request_that_two_groups_died_of_is_named(
    groups: TimedGroups, service: RunningFrontend, request_id: str
) -> None:
    await asyncio.to_thread(service.wait_groups, GROUPS)
    alive = list(groups.all)
    await asyncio.to_thread(alive.pop().end, signal.SIGKILL)
    await asyncio.to_thread(service.wait_groups, len(alive))
    poison = images_pb2.GenerateRequest(prompt="a fox", request_id=request_id, steps=STEPS_OF_SECONDS)
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = images_pb2_grpc.ImageGenerationStub(channel)
        call = asyncio.ensure_future(_answer(stub, poison))
        while alive:
            computing = await _wait_busy(alive)
            alive.remove(computing)
            await asyncio.to_thread(computing.end, signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call
    assert ended.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert from_call(ended.value).reason == "POISON_REQUEST"
    assert groups.computed() == []


async def _answer(
    stub: images_pb2_grpc.ImageGenerationStub, request: images_pb2.GenerateRequest
) -> images_pb2.GenerateResponse:
    return await stub.Generate(request, timeout=30.0)


async def _kill(group: TimedGroup) -> None:
    """Kill a group; it starts again at once."""
    await asyncio.to_thread(group.end, signal.SIGKILL)
    await asyncio.to_thread(group.start)


async def _stop_for_a_while(group: TimedGroup, service: RunningFrontend) -> None:
    """Let a group hang until it is given up, and go on later."""
    group.send(signal.SIGSTOP)
    try:
        await asyncio.to_thread(service.wait_groups, GROUPS - 1)
        await asyncio.sleep(0.5)
    finally:
        group.send(signal.SIGCONT)


async def _wait_busy(groups: Sequence[TimedGroup]) -> TimedGroup:
    """Return the first of `groups` that has something to do, once one has."""

    found: list[TimedGroup] = []

    def look() -> bool:
        found.extend(group for group in groups if group.metric("pixelpod_group_in_flight") > 0)
        return bool(found)

    await asyncio.to_thread(wait_until, look, 10.0, lambda: "no group has anything to do")
    return found[0]
