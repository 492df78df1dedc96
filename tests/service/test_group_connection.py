"""A connection follows its group through its life, and ends its requests when the group is lost."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable

import pytest

from pixelpod.server.errors import DeadlinePassed, InvalidRequest, Overloaded, RequestError, Unavailable
from pixelpod.v1 import group_pb2
from service.availability import Availability
from service.group_connection import CONTRACT_VERSION, GroupConnection
from tests.service.conftest import WAIT_SECONDS, eventually
from tests.service.connections import REQUEST, connected, executed, executed_to_first_step, executed_whole
from tests.service.stub_group import StubGroup, tiny_model

Execute = Callable[..., Awaitable[object]]
both = pytest.mark.parametrize("execute", [executed, executed_whole])


@pytest.mark.parametrize(
    ("state", "availability"),
    [
        (group_pb2.GROUP_STATE_LOADING, Availability.LOADING),
        (group_pb2.GROUP_STATE_WARMING, Availability.WARMING),
        (group_pb2.GROUP_STATE_READY, Availability.READY),
        (group_pb2.GROUP_STATE_DRAINING, Availability.DRAINING),
    ],
)
async def test_state(start_group, state: int, availability: Availability) -> None:
    group = await start_group()
    group.status.state = state
    async with connected(group.address) as connection:
        assert connection.availability is availability
        assert connection.ready == (availability is Availability.READY)
        assert connection.model == group.status.model


async def test_change_is_reported_once_per_change(start_group) -> None:
    group = await start_group()
    changes: list[Availability] = []
    statuses: list[GroupConnection] = []
    connection = GroupConnection(
        group.address, 5.0, lambda: changes.append(connection.availability), lambda group: statuses.append(group)
    )
    watch = asyncio.create_task(connection.watch())
    await eventually(lambda: connection.ready)
    await group.publish(backlog_seconds=3.5)
    await eventually(lambda: connection.load.status.backlog_seconds == 3.5)
    await group.publish(state=group_pb2.GROUP_STATE_DRAINING)
    await eventually(lambda: connection.availability is Availability.DRAINING)
    await group.publish(model=tiny_model("other"))
    await eventually(lambda: connection.model.name == "other")
    watch.cancel()
    await connection.close()
    assert statuses[:4] == [connection] * 4, "every status is told"
    assert changes == [Availability.READY, Availability.DRAINING, Availability.DRAINING]


async def test_other_contract_version_is_not_used_and_logged_once(start_group, caplog) -> None:
    group = await start_group()
    group.status.contract_version = CONTRACT_VERSION + 1
    with caplog.at_level(logging.INFO, "service"):
        async with connected(group.address) as connection:
            assert connection.availability is Availability.INCOMPATIBLE
            assert connection.model is None
            await group.publish(backlog_seconds=1)
            await eventually(lambda: connection.load.status.backlog_seconds == 1)
    (line,) = [record for record in caplog.records if getattr(record, "state", "") == "incompatible"]
    assert (line.levelname, line.contract_version, line.frontend_contract_version) == (
        "WARNING",
        CONTRACT_VERSION + 1,
        CONTRACT_VERSION,
    )


async def test_restarted_group_is_found_again_within_seconds(start_group) -> None:
    group = await start_group()
    async with connected(group.address) as connection:
        await group.stop()
        await eventually(lambda: connection.availability is Availability.GONE)
        assert connection.model == tiny_model()  # it is expected back
        await start_group("again", port=int(group.address.rpartition(":")[2]))
        began = time.monotonic()
        await eventually(lambda: connection.ready)
        assert connection.name == "again"
        assert time.monotonic() - began < 3


async def test_silent_group_is_gone(start_group) -> None:
    group = await start_group()
    async with connected(group.address, silent_seconds=1.0) as connection:
        group.silent = True
        began = time.monotonic()
        await eventually(lambda: connection.availability is Availability.GONE)
        assert 0.5 < time.monotonic() - began < 2
        group.silent = False
        await eventually(lambda: connection.ready)


async def test_events_of_a_request(start_group) -> None:
    group = await start_group()
    async with connected(group.address) as connection:
        events = await executed(connection)
    assert [event.WhichOneof("event") for event in events] == ["progress"] * 4 + ["image_chunk", "done"]
    assert events[-2].image_chunk.data == group.image
    assert group.executed == [REQUEST]


async def test_the_whole_answer_to_a_request(start_group) -> None:
    group = await start_group()
    async with connected(group.address) as connection:
        answer = await executed_whole(connection)
    assert [image.data for image in answer.images] == [group.image]
    assert group.executed == [REQUEST]


@both
@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("steps", "too many"),
        Overloaded("queue full", reason="QUEUE_FULL", retry_after_seconds=2.5),
        Unavailable("draining", reason="DRAINING", retry_after_seconds=1),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_errors_of_a_group_come_back_as_they_were(start_group, error: RequestError, execute: Execute) -> None:
    group = await start_group()
    group.error = error
    async with connected(group.address) as connection:
        with pytest.raises(type(error)) as raised:
            await execute(connection)
    assert vars(raised.value) == vars(error)


@both
async def test_deadline_ends_the_computation(start_group, execute: Execute) -> None:
    group = await start_group()
    group.go_on.clear()
    async with connected(group.address) as connection:
        with pytest.raises(DeadlinePassed):
            await execute(connection, timeout_seconds=0.3)
        await asyncio.wait_for(group.cancelled.wait(), WAIT_SECONDS)


async def test_closing_the_events_cancels_the_computation(start_group) -> None:
    group = await start_group()
    group.go_on.clear()
    async with connected(group.address) as connection:
        events = connection.execute_stream(REQUEST, WAIT_SECONDS)
        await anext(events)
        await events.aclose()
        await asyncio.wait_for(group.cancelled.wait(), WAIT_SECONDS)


@both
async def test_cancelled_caller_is_no_lost_group(start_group, execute: Execute) -> None:
    group = await start_group()
    group.go_on.clear()
    async with connected(group.address) as connection:
        task = asyncio.create_task(execute(connection))
        await asyncio.wait_for(group.stepped.wait(), WAIT_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(group.cancelled.wait(), WAIT_SECONDS)


@both
async def test_cut_requests_end_as_unavailable(start_group, execute: Execute) -> None:
    group = await start_group()
    group.go_on.clear()
    async with connected(group.address) as connection:
        task = asyncio.create_task(execute(connection))
        await asyncio.wait_for(group.stepped.wait(), WAIT_SECONDS)
        connection.cut_requests("the reason why", "CUT")
        with pytest.raises(Unavailable) as lost:
            await task
        assert (lost.value.message, lost.value.reason) == ("the reason why", "CUT")
        await asyncio.wait_for(group.cancelled.wait(), WAIT_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
async def test_requests_of_a_dead_or_stuck_process_end_within_seconds(held_group, number: signal.Signals) -> None:
    process, address = held_group
    async with connected(address, silent_seconds=1.0) as connection:
        events = await executed_to_first_step(connection)
        began = time.monotonic()
        process.send_signal(number)
        with pytest.raises(Unavailable, match=r"group stub-process (was lost|fell silent)") as lost:
            await anext(events)
        assert time.monotonic() - began < 3
        assert lost.value.retry_after_seconds == 1
        await eventually(lambda: connection.availability is Availability.GONE)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
async def test_whole_answers_of_a_dead_or_stuck_process_end_too(held_group, number: signal.Signals) -> None:
    process, address = held_group
    async with connected(address, silent_seconds=1.0) as connection:
        answer = asyncio.create_task(executed_whole(connection))
        await eventually(lambda: list(connection.load.status.computing) == [REQUEST.request_id])
        began = time.monotonic()
        process.send_signal(number)
        with pytest.raises(Unavailable, match=r"group stub-process (was lost|fell silent)"):
            await answer
        assert time.monotonic() - began < 3


async def test_unwatched_group_is_gone() -> None:
    connection = GroupConnection("127.0.0.1:1", 5.0, lambda: None, lambda group: None)
    assert connection.availability is Availability.GONE
    assert connection.name == "127.0.0.1:1"
    await connection.close()


def test_stub_is_a_whole_group() -> None:
    """The stand-in serves every method of the contract."""
    service = group_pb2.DESCRIPTOR.services_by_name["WorkerGroup"]
    assert all(method.name in vars(StubGroup) for method in service.methods)
