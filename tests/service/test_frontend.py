"""A frontend's life: health, reflection, ports, drain; in the loop and as a real process."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
import uuid

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pixelpod.server.errors import InvalidRequest, Unavailable, from_call
from pixelpod.server.probes import LIVE
from pixelpod.server.transport import AddressInUse
from pixelpod.v1 import group_pb2
from service.frontend import Frontend
from service.servicer import SERVICE_NAME
from service.settings import FrontendSettings
from tests.service.conftest import RUN, SERVING, WAIT_SECONDS, Client, eventually

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("service", ["", SERVICE_NAME])
async def test_health_follows_the_groups(start_group, start_frontend, service: str) -> None:
    group = await start_group()
    group.status.state = group_pb2.GROUP_STATE_WARMING
    client: Client = await start_frontend(group, ready=False)
    watch = client.health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_SECONDS)
    assert (await watch.read()).status == NOT_SERVING
    await group.publish(state=group_pb2.GROUP_STATE_READY)
    assert (await watch.read()).status == SERVING
    assert await client.health_of(service) == SERVING
    await group.publish(state=group_pb2.GROUP_STATE_DRAINING)
    assert (await watch.read()).status == NOT_SERVING
    await group.publish(state=group_pb2.GROUP_STATE_READY)
    assert (await watch.read()).status == SERVING
    await group.stop()
    assert (await watch.read()).status == NOT_SERVING
    assert await client.health_of(service) == NOT_SERVING
    watch.cancel()


async def test_probes_are_answered_without_the_api(start_group, start_frontend) -> None:
    client: Client = await start_frontend(await start_group(), probes="127.0.0.1:0", drain_delay_seconds=1)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{client.frontend.probes_port}") as channel:
        probed = Client(channel)
        assert [await probed.health_of(name) for name in ("", SERVICE_NAME, LIVE)] == [SERVING] * 3
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await probed.generate()
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED
        stopping = asyncio.create_task(client.frontend.stop())

        async def draining() -> bool:
            return await probed.health_of() == NOT_SERVING

        await eventually(draining)
        assert await probed.health_of(LIVE) == SERVING
        await stopping


async def test_liveness_needs_no_group(start_frontend) -> None:
    client = await start_frontend("127.0.0.1:1", ready=False)
    assert [await client.health_of(name) for name in ("", LIVE)] == [NOT_SERVING, SERVING]


async def test_one_ready_group_is_enough(start_group, start_frontend) -> None:
    groups = [await start_group(), await start_group()]
    await groups[0].publish(state=group_pb2.GROUP_STATE_LOADING)
    client = await start_frontend(*groups)
    assert await client.health_of() == SERVING


async def test_reflection_lists_the_services(start_group, start_frontend) -> None:
    client = await start_frontend(await start_group())
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert {SERVICE_NAME, "grpc.health.v1.Health"} <= names
    call.cancel()


async def test_no_group_yet(start_frontend) -> None:
    client = await start_frontend("127.0.0.1:1", ready=False)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate()
    error = from_call(raised.value)
    assert isinstance(error, Unavailable)
    assert (error.reason, error.retry_after_seconds) == ("GROUPS_UNREACHABLE", 1)


@pytest.mark.parametrize("taken", ["listen", "metrics"])
async def test_taken_port_is_refused(start_group, start_frontend, taken: str) -> None:
    client = await start_frontend(await start_group())
    port = client.frontend.port if taken == "listen" else client.frontend.metrics_port
    addresses = {"listen": "127.0.0.1:0", "metrics": "127.0.0.1:0", taken: f"127.0.0.1:{port}"}
    second = Frontend(FrontendSettings(groups=["127.0.0.1:1"], **addresses))
    with pytest.raises(AddressInUse, match=f"127.0.0.1:{port}"):
        await second.start()
    await client.generate()


async def test_metrics_can_be_left_out(start_group, start_frontend) -> None:
    client = await start_frontend(await start_group(), metrics=None)
    assert client.frontend.metrics_port == 0
    await client.generate()


async def test_still_serves_during_the_drain_delay(start_group, start_frontend) -> None:
    client = await start_frontend(await start_group(), drain_delay_seconds=0.5)
    stop = asyncio.create_task(client.frontend.stop())

    async def not_serving() -> bool:
        return await client.health_of() == NOT_SERVING

    await eventually(not_serving)
    await client.generate()
    assert not stop.done()
    await stop
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.generate()
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_accepted_requests_are_finished_and_watchers_do_not_delay(start_group, start_frontend) -> None:
    group = await start_group()
    group.go_on.clear()
    client = await start_frontend(group, drain_seconds=WAIT_SECONDS)
    watch = client.health.Watch(health_pb2.HealthCheckRequest())
    await watch.read()
    answer = asyncio.create_task(client.generate())
    await asyncio.wait_for(group.stepped.wait(), WAIT_SECONDS)
    began = time.monotonic()
    stop = asyncio.create_task(client.frontend.stop())
    assert (await watch.read()).status == NOT_SERVING
    group.go_on.set()
    assert (await answer).images[0].data == group.image
    await stop
    assert time.monotonic() - began < 2


async def test_requests_that_come_at_the_last_moment_are_finished_too(start_group, start_frontend) -> None:
    """The listener closes a moment after the drain began to wait: what slips in meanwhile has its time as well."""
    group = await start_group()
    group.go_on.clear()
    client = await start_frontend(group, drain_seconds=WAIT_SECONDS)
    early = client.images.Generate(client.request())
    await eventually(lambda: group.running == 1)
    finish = asyncio.create_task(client.frontend._service.finish(WAIT_SECONDS))
    late = asyncio.create_task(client.generate())
    await eventually(lambda: group.running == 2)
    early.cancel()
    await eventually(lambda: client.in_flight == 1)
    assert not finish.done()
    group.go_on.set()
    assert (await late).images[0].data == group.image
    await asyncio.wait_for(finish, WAIT_SECONDS)


async def test_what_does_not_finish_gets_a_status(start_group, start_frontend) -> None:
    group = await start_group()
    group.go_on.clear()
    client = await start_frontend(group, drain_seconds=0.3)
    answer = asyncio.create_task(client.generate())
    await asyncio.wait_for(group.stepped.wait(), WAIT_SECONDS)
    await client.frontend.stop()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await answer
    assert isinstance(from_call(raised.value), Unavailable)
    assert from_call(raised.value).reason == "FRONTEND_STOPPING"
    await asyncio.wait_for(group.cancelled.wait(), WAIT_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_signal_ends_a_process_within_the_grace(start_group, serve_process, number: signal.Signals) -> None:
    group = await start_group()
    group.go_on.clear()
    process, client, port = await serve_process(group.address)
    await client.serving()
    answers = [asyncio.create_task(client.generate()) for _ in range(6)]
    await eventually(lambda: len(group.executed) == 6)
    began = time.monotonic()
    process.send_signal(number)

    async def not_serving() -> bool:
        return await client.health_of() == NOT_SERVING

    await eventually(not_serving)
    results = await asyncio.gather(*answers, return_exceptions=True)
    assert [from_call(result).reason for result in results] == ["FRONTEND_STOPPING"] * 6
    _, log = await asyncio.to_thread(process.communicate, timeout=WAIT_SECONDS)
    assert time.monotonic() - began < 4  # delay, drain and last word are 2.5 s
    assert process.returncode == 0
    assert '"listening"' in log
    assert '"stopped"' in log
    assert "Traceback" not in log
    with socket.create_server(("127.0.0.1", port)):
        pass  # the port is free


async def test_frontend_that_was_stopped_loses_no_request(start_group, serve_process) -> None:
    """Its own absence is no silence of its groups."""
    group = await start_group()
    group.go_on.clear()
    process, client, _ = await serve_process(group.address)
    await client.serving()
    answers = [asyncio.create_task(client.generate(deadline_seconds=2 * WAIT_SECONDS)) for _ in range(4)]
    await eventually(lambda: group.running == 4)
    for _ in range(2):
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1.5 * FrontendSettings.model_fields["group_silent_seconds"].default)
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.5)
    assert group.watches == 1
    group.go_on.set()
    assert [answer.images[0].data for answer in await asyncio.gather(*answers)] == [group.image] * 4


async def test_second_process_on_one_port_fails(start_group, serve_process, start_process) -> None:
    _, _, port = await serve_process((await start_group()).address)
    second = start_process(
        "-c",
        RUN,
        PIXELPOD_FRONTEND_GROUPS="127.0.0.1:1",
        PIXELPOD_FRONTEND_LISTEN=f"127.0.0.1:{port}",
        PIXELPOD_FRONTEND_METRICS="none",
    )
    _, log = await asyncio.to_thread(second.communicate, timeout=WAIT_SECONDS)
    assert second.returncode != 0
    assert f"cannot listen on 127.0.0.1:{port}" in log


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
async def test_large_prompts_leave_memory_flat(start_group, serve_process, named: bool) -> None:
    group = await start_group()
    process, client, _ = await serve_process(group.address)
    await client.serving()
    memory = psutil.Process(process.pid).memory_info

    async def refuse(prompt_bytes: int) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.generate(prompt="x" * prompt_bytes, request_id=uuid.uuid4().hex if named else "")
        error = from_call(raised.value)
        assert isinstance(error, InvalidRequest)
        assert error.field == "prompt"

    async def refuse_all() -> None:
        await refuse(3_900_000)
        await asyncio.gather(*(refuse(1_000_000) for _ in range(20)))

    await refuse_all()
    before = memory().rss
    for _ in range(7):
        await refuse_all()
    # 167 MB were refused; the allocator keeps what a few of them need at once.
    assert memory().rss - before < 80 * 1024 * 1024
    assert not group.executed
