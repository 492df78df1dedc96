"""Groups come and go while a frontend runs, and requests stay whole."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable

import pytest

import service.groups
from pixelpod.server.errors import Unavailable
from pixelpod.v1 import group_pb2, images_pb2
from service.group_connection import GroupConnection
from service.groups import Groups
from service.settings import FrontendSettings
from tests.service.conftest import WAIT_SECONDS, eventually
from tests.service.connections import executed, executed_to_first_step
from tests.service.stub_group import StubGroup, tiny_model

SILENT_SECONDS = FrontendSettings.model_fields["group_silent_seconds"].default
NOTICED_SECONDS = 3.0
"""The two seconds in which a lost group is to be noticed, and room for a busy machine."""


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., object]]:
    """Connect to groups, with a short linger, and wait until so many are ready."""
    started: list[Groups] = []

    async def start(*addresses: str, ready: int | None = None) -> Groups:
        groups = Groups(addresses, SILENT_SECONDS, lambda: None, lambda group: None)
        started.append(groups)
        groups.start()
        await eventually(lambda: sum(group.ready for group in groups) == (len(addresses) if ready is None else ready))
        return groups

    yield start
    for groups in started:
        await groups.close()


@pytest.fixture(autouse=True)
def _short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.groups, "LINGER_SECONDS", 0.1)


def addresses(groups: Groups) -> list[str]:
    return [group.address for group in groups]


def connection(groups: Groups, group: StubGroup) -> GroupConnection:
    return next(connection for connection in groups if connection.address == group.address)


async def begin_request(groups: Groups, group: StubGroup) -> asyncio.Task[list[images_pb2.GenerateEvent]]:
    """Have a group compute a request to its first step; it goes on when the group's `go_on` is set."""
    group.go_on.clear()
    request = asyncio.create_task(executed(connection(groups, group)))
    await asyncio.wait_for(group.stepped.wait(), WAIT_SECONDS)
    return request


async def test_group_taken_out_finishes_its_requests(start_group, connect) -> None:
    leaving, staying = await start_group(), await start_group()
    groups = await connect(leaving.address, staying.address)
    request = await begin_request(groups, leaving)
    groups.set_addresses([staying.address])
    assert addresses(groups) == [staying.address]
    await asyncio.sleep(3 * service.groups.LINGER_SECONDS)
    assert leaving.watching == 1  # it is looked after until its requests have ended
    leaving.go_on.set()
    assert (await request)[-1].WhichOneof("event") == "done"
    await eventually(lambda: leaving.watching == 0)
    assert (leaving.watches, staying.watches, staying.watching) == (1, 1, 1)


async def test_request_that_was_about_to_begin_still_can(start_group, connect) -> None:
    leaving, staying = await start_group(), await start_group()
    groups = await connect(leaving.address, staying.address)
    chosen = connection(groups, leaving)
    groups.set_addresses([staying.address])
    await asyncio.sleep(service.groups.LINGER_SECONDS / 2)
    assert (await executed(chosen))[-1].WhichOneof("event") == "done"
    await eventually(lambda: leaving.watching == 0)


async def test_group_that_comes_back_keeps_its_connection(start_group, connect) -> None:
    back, staying = await start_group(), await start_group()
    groups = await connect(back.address, staying.address)
    request = await begin_request(groups, back)
    groups.set_addresses([staying.address])
    groups.set_addresses([staying.address, back.address])
    assert sorted(addresses(groups)) == sorted([staying.address, back.address])
    assert connection(groups, back).ready
    back.go_on.set()
    assert (await request)[-1].WhichOneof("event") == "done"
    await asyncio.sleep(3 * service.groups.LINGER_SECONDS)
    assert (back.watches, back.watching) == (1, 1)


async def test_group_that_comes_back_after_it_was_dropped(start_group, connect) -> None:
    back, staying = await start_group(), await start_group()
    groups = await connect(back.address, staying.address)
    for watches in (1, 2, 3):
        assert back.watches == watches
        groups.set_addresses([staying.address])
        await eventually(lambda: back.watching == 0)
        groups.set_addresses([staying.address, back.address])
        await eventually(lambda: sum(group.ready for group in groups) == 2)


async def test_group_that_dies_after_it_was_taken_out_is_dropped(start_group, connect) -> None:
    leaving, staying = await start_group(), await start_group()
    groups = await connect(leaving.address, staying.address)
    request = await begin_request(groups, leaving)
    groups.set_addresses([staying.address])
    leaving.silent = True
    with pytest.raises(Unavailable, match="fell silent"):
        await request
    await eventually(lambda: leaving.watching == 0)
    assert leaving.watches == 1


async def test_catalog_forgets_what_was_taken_out(start_group, connect) -> None:
    a, b = await start_group("a", tiny_model("a")), await start_group("b", tiny_model("b"))
    groups = await connect(a.address, b.address)
    await b.publish(state=group_pb2.GROUP_STATE_DRAINING)
    await eventually(lambda: sum(group.ready for group in groups) == 1)
    groups.set_addresses([a.address])
    assert list(groups.models) == ["a"]


async def test_last_group_of_a_model_serves_until_another_is_ready(start_group, connect) -> None:
    old, new = await start_group("old"), await start_group("new")
    await new.publish(state=group_pb2.GROUP_STATE_WARMING)
    groups = await connect(old.address)
    groups.set_addresses([new.address])
    assert groups.any_ready
    await eventually(lambda: new.watching == 1)
    assert (await executed(connection(groups, old)))[-1].WhichOneof("event") == "done"
    await new.publish(state=group_pb2.GROUP_STATE_READY)
    await eventually(lambda: addresses(groups) == [new.address])
    assert groups.any_ready
    await eventually(lambda: old.watching == 0)


async def test_last_group_of_a_model_serves_on_for_a_bounded_time(
    start_group, connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.groups, "HANDOVER_SECONDS", 0.3)
    group = await start_group()
    groups = await connect(group.address)
    began = time.monotonic()
    groups.set_addresses([])
    assert addresses(groups) == [group.address]
    await eventually(lambda: not addresses(groups))
    assert time.monotonic() - began >= 0.3
    assert groups.models == {}
    await eventually(lambda: group.watching == 0)


async def test_two_addresses_of_one_group_count_once(start_group, connect) -> None:
    group, other = await start_group(), await start_group()
    port = group.address.rpartition(":")[2]
    by_name = f"localhost:{port}"
    groups = await connect(group.address, by_name, other.address, ready=2)
    await eventually(lambda: group.watching == 2)
    await eventually(lambda: len(addresses(groups)) == 2)
    assert other.address in addresses(groups)
    assert groups.models["tiny"].ready_groups == 2
    # Taking out the one that is used makes way for the other.
    groups.set_addresses([by_name, other.address])
    assert sorted(addresses(groups)) == sorted([by_name, other.address])
    assert groups.models["tiny"].ready_groups == 2


async def test_restarted_group_is_no_second_address(start_group, connect) -> None:
    """Groups of one name whose epochs differ are two: a name was given twice, or one is about to be found gone."""
    first, second = await start_group("same"), await start_group("same")
    groups = await connect(first.address, second.address)
    assert sorted(addresses(groups)) == sorted([first.address, second.address])


async def test_a_group_that_tells_another_life_is_looked_at_anew(start_group, connect) -> None:
    """Also where it was never seen gone in between."""
    first, second = await start_group("same"), await start_group("same")
    second.status.epoch = first.status.epoch
    groups = await connect(first.address, second.address, ready=1)
    await second.publish(epoch=first.status.epoch + 1)
    await eventually(lambda: sorted(addresses(groups)) == sorted([first.address, second.address]))
    await second.publish(epoch=first.status.epoch)
    await eventually(lambda: len(addresses(groups)) == 1)


async def test_silent_group_is_gone_within_two_seconds(start_group, connect) -> None:
    group = await start_group()
    groups = await connect(group.address)
    group.silent = True
    began = time.monotonic()
    await eventually(lambda: not groups.any_ready)
    assert 1.0 < time.monotonic() - began < NOTICED_SECONDS


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
async def test_killed_or_stopped_process_is_gone_within_two_seconds(
    held_group, connect, number: signal.Signals
) -> None:
    process, address = held_group
    groups = await connect(address)
    (group,) = groups
    events = await executed_to_first_step(group)
    began = time.monotonic()
    process.send_signal(number)
    with pytest.raises(Unavailable):
        await anext(events)
    await eventually(lambda: not groups.any_ready)
    assert time.monotonic() - began < NOTICED_SECONDS
