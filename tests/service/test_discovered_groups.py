"""A frontend follows the groups that DNS or a file lists, through failures and changes, and loses no request."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import dns.rcode
import grpc
import pytest
from grpc_health.v1 import health_pb2

from pixelpod.server.errors import Unavailable, from_call
from pixelpod.v1 import group_pb2, images_pb2
from tests.service.conftest import WAIT_SECONDS, Client, eventually
from tests.service.dns_stub import DnsStub
from tests.service.stub_group import StubGroup, tiny_model

NAME = "groups.pixelpod.example"
PAUSE_SECONDS = 0.05


def known_addresses(client: Client) -> set[str]:
    """The addresses that have metrics."""
    assert client.frontend is not None
    (metric,) = client.frontend.metrics.group_up.collect()
    return {sample.labels["address"] for sample in metric.samples}


def failures(client: Client, source: str) -> float:
    """How many looks at a kind of source failed."""
    assert client.frontend is not None
    value = client.frontend.metrics.registry.get_sample_value
    return value("pixelpod_frontend_discovery_failures_total", {"source": source}) or 0


async def routed(client: Client) -> str:
    """Return the name of the group that made an image."""
    return (await client.generate()).group


@pytest.fixture
async def same_port(start_group) -> Callable[[int], object]:
    """Start a group on 127.0.0.<number>; all of them on one port, as the pods of a Service."""
    port = 0

    async def start(number: int, **kwargs: object) -> StubGroup:
        nonlocal port
        group = await start_group(f"g{number}", host=f"127.0.0.{number}", port=port, **kwargs)
        port = int(group.address.rpartition(":")[2])
        return group

    return start


@pytest.fixture
async def start_with_dns(start_frontend, name_server: DnsStub) -> Callable[..., object]:
    """Start a frontend that finds its groups by `NAME`."""

    async def start(port: str, **settings: object) -> Client:
        return await start_frontend(
            groups_dns=[f"{NAME}:{port}"],
            dns_server=name_server.address,
            discovery_seconds=PAUSE_SECONDS,
            **settings,
        )

    return start


def port_of(group: StubGroup) -> str:
    return group.address.rpartition(":")[2]


async def test_groups_by_dns_come_and_go(name_server: DnsStub, same_port, start_with_dns) -> None:
    first, second = await same_port(1), await same_port(2)
    name_server.records[NAME] = ["127.0.0.1"]
    client = await start_with_dns(port_of(first))
    assert known_addresses(client) == {first.address}
    name_server.records[NAME] = ["127.0.0.1", "127.0.0.2"]
    await eventually(lambda: known_addresses(client) == {first.address, second.address})
    name_server.records[NAME] = ["127.0.0.2"]
    await eventually(lambda: known_addresses(client) == {second.address})
    await client.serving()
    assert {await routed(client) for _ in range(5)} == {"g2"}


async def test_start_before_any_group(name_server: DnsStub, same_port, start_with_dns) -> None:
    group = await same_port(1)
    client = await start_with_dns(port_of(group), ready=False)
    await eventually(lambda: name_server.questions >= 3)
    assert await client.health_of() == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate()
    error = from_call(raised.value)
    assert isinstance(error, Unavailable)
    assert (error.reason, error.retry_after_seconds) == ("NO_GROUP", 1)
    name_server.records[NAME] = ["127.0.0.1"]
    await client.serving()
    assert await routed(client) == "g1"


@pytest.mark.parametrize("fault", ["SERVFAIL", "NXDOMAIN", "no addresses", "silence"])
async def test_dns_that_fails_costs_no_group(
    name_server: DnsStub, same_port, start_with_dns, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr("service.dns_source.LOOKUP_SECONDS", 0.2)
    group = await same_port(1)
    name_server.records[NAME] = ["127.0.0.1"]
    client = await start_with_dns(port_of(group))
    if fault == "silence":
        name_server.silent = True
    elif fault == "no addresses":
        name_server.records[NAME] = []
    else:
        name_server.rcode = dns.rcode.from_text(fault)
    await eventually(lambda: failures(client, "dns") >= 3)
    assert known_addresses(client) == {group.address}
    assert await routed(client) == "g1"


async def test_groups_by_a_file_beside_a_list(start_group, start_frontend, tmp_path: Path) -> None:
    listed, first, second = [await start_group(name) for name in ("listed", "first", "second")]
    file = tmp_path / "groups"
    file.write_text(f"{first.address}  # the first\n")
    client = await start_frontend(listed, groups_file=file, discovery_seconds=PAUSE_SECONDS)
    await eventually(lambda: known_addresses(client) == {listed.address, first.address})
    replacement = tmp_path / "replacement"
    replacement.write_text(f"{second.address}\n")
    os.replace(replacement, file)
    await eventually(lambda: known_addresses(client) == {listed.address, second.address})
    file.unlink()
    await eventually(lambda: failures(client, "file") >= 3)
    assert known_addresses(client) == {listed.address, second.address}


async def test_scaling_under_load_loses_no_request(name_server: DnsStub, same_port, start_with_dns) -> None:
    """Callers never stop asking while groups come, go, and come back; every request is answered."""
    groups = [await same_port(number) for number in (1, 2, 3, 4)]
    for group in groups:
        group.step_seconds = 0.02
    hosts = [group.address.rpartition(":")[0] for group in groups]
    name_server.records[NAME] = hosts[:1]
    client = await start_with_dns(port_of(groups[0]))
    answers: list[images_pb2.GenerateResponse] = []
    stop = asyncio.Event()

    async def ask() -> None:
        while not stop.is_set():
            answers.append(await client.generate())

    callers = [asyncio.create_task(ask()) for _ in range(8)]

    async def scale_to(*numbers: int) -> None:
        """List these groups, wait until each of them works, and end those that were taken out and are done."""
        name_server.records[NAME] = [hosts[number] for number in numbers]
        chosen = [groups[number] for number in numbers]
        await eventually(lambda: known_addresses(client) == {group.address for group in chosen})
        enough = {group: len(group.executed) + 3 for group in chosen}
        await eventually(lambda: all(len(group.executed) >= count for group, count in enough.items()))
        for group in groups:
            if group not in chosen:
                await eventually(lambda group=group: group.running == 0)

    # From one group to another that is not ready at once: the old one does its work until then.
    await groups[1].publish(state=group_pb2.GROUP_STATE_WARMING)
    name_server.records[NAME] = hosts[1:2]
    await eventually(lambda: groups[1].watching == 1)
    await asyncio.sleep(0.3)
    await groups[1].publish(state=group_pb2.GROUP_STATE_READY)
    for numbers in ((1,), (0, 1), (0, 1, 2, 3), (2,), (1, 2), (3,), (0, 1, 2, 3), (0,)):
        await scale_to(*numbers)
    stop.set()
    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.gather(*callers)  # raises if any request failed
    assert len(answers) == sum(len(group.executed) for group in groups)
    assert {answer.group for answer in answers} == {"g1", "g2", "g3", "g4"}
    assert all(answer.images[0].data == b"image bytes" for answer in answers)
    assert client.in_flight == 0


async def test_group_that_ended_after_it_was_taken_out(name_server: DnsStub, same_port, start_with_dns) -> None:
    """The way of a pod: out of DNS, its last request answered, gone; another one takes its address with a new model."""
    first, second = await same_port(1), await same_port(2)
    name_server.records[NAME] = ["127.0.0.1", "127.0.0.2"]
    client = await start_with_dns(port_of(first))
    await eventually(lambda: len(known_addresses(client)) == 2)
    name_server.records[NAME] = ["127.0.0.2"]
    await eventually(lambda: known_addresses(client) == {second.address})
    await first.stop()
    assert await routed(client) == "g2"
    await same_port(1, model=tiny_model("other"))
    name_server.records[NAME] = ["127.0.0.1", "127.0.0.2"]

    async def both_listed() -> bool:
        models = (await client.images.ListModels(images_pb2.ListModelsRequest())).models
        return [model.name for model in models] == ["other", "tiny"]

    await eventually(both_listed)


async def test_command_by_dns_also_ends_while_dns_is_silent(name_server: DnsStub, same_port, start_process) -> None:
    group = await same_port(1)
    name_server.records[NAME] = ["127.0.0.1"]
    process = start_process(
        *("-m", "pixelpod", "serve", "--groups-dns", f"{NAME}:{port_of(group)}", "--metrics", "none"),
        *("--listen", "127.0.0.1:0", "--drain-delay-seconds", "0", "--log-format", "json"),
        PIXELPOD_FRONTEND_DNS_SERVER=name_server.address,
        PIXELPOD_FRONTEND_DISCOVERY_SECONDS=str(PAUSE_SECONDS),
    )
    await eventually(lambda: group.watching == 1)
    name_server.silent = True
    await asyncio.sleep(4 * PAUSE_SECONDS)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, log = await asyncio.to_thread(process.communicate, timeout=WAIT_SECONDS)
    assert time.monotonic() - began < 2
    assert process.returncode == 0
    assert '"group added"' in log
    assert "Traceback" not in log
