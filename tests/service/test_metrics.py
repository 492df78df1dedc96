"""What Prometheus reads, over HTTP."""

from __future__ import annotations

import asyncio
import re
import urllib.request

import grpc
import pytest

from pixelpod.server.errors import ComputationFailed
from service.metrics import FrontendMetrics
from tests.service.conftest import WAIT_SECONDS, Client, eventually


def scrape(port: int) -> dict[str, float]:
    """Return every sample by its name with labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


async def scraped(client: Client) -> dict[str, float]:
    assert client.frontend is not None
    return await asyncio.to_thread(scrape, client.frontend.metrics_port)


def test_long_durations_have_finite_quantiles() -> None:
    metrics = FrontendMetrics()
    metrics.request_seconds.labels("tiny").observe(300)
    value = metrics.registry.get_sample_value
    labels = {"model": "tiny"}
    assert value("pixelpod_frontend_request_seconds_bucket", {**labels, "le": "180.0"}) == 0
    assert value("pixelpod_frontend_request_seconds_bucket", {**labels, "le": "300.0"}) == 1


async def test_codes_sum_up_and_gauges_return_to_zero(start_group, start_frontend) -> None:
    """Random endings: the sum of all codes is the number of requests, and nothing stays in flight."""
    group = await start_group()
    client = await start_frontend(group)

    async def end(number: int) -> None:
        kind = number % 4
        fields = {1: {"steps": 0}, 2: {"model": "x" * number}}.get(kind, {})
        call = client.images.GenerateStream(client.request(**fields))
        try:
            async for _ in call:
                if kind == 3:
                    call.cancel()
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass

    await asyncio.gather(*(end(number) for number in range(40)))

    async def all_counted() -> bool:
        samples = await scraped(client)
        requests = sum(value for name, value in samples.items() if "requests_total" in name)
        return requests == 40 and samples["pixelpod_frontend_in_flight"] == 0

    await eventually(all_counted)
    samples = await scraped(client)
    codes = {name: value for name, value in samples.items() if "requests_total" in name}
    assert codes.pop('pixelpod_frontend_requests_total{code="INVALID_ARGUMENT",model="tiny"}') == 10
    assert codes.pop('pixelpod_frontend_requests_total{code="NOT_FOUND",model="unknown"}') == 10
    # A cancel may come after the last event.
    assert set(codes) <= {
        f'pixelpod_frontend_requests_total{{code="{code}",model="tiny"}}' for code in ("OK", "CANCELLED")
    }
    assert codes['pixelpod_frontend_requests_total{code="OK",model="tiny"}'] >= 10
    assert samples['pixelpod_frontend_request_seconds_count{model="tiny"}'] == 30
    assert samples['pixelpod_frontend_queue_seconds_count{model="tiny"}'] >= 10


async def test_group_errors_are_counted_by_code(start_group, start_frontend) -> None:
    group = await start_group()
    group.error = ComputationFailed("it failed", reason="COMPUTATION_FAILED")
    client = await start_frontend(group)
    with pytest.raises(grpc.aio.AioRpcError):
        await client.generate()
    assert (await scraped(client))['pixelpod_frontend_requests_total{code="INTERNAL",model="tiny"}'] == 1


async def test_group_state_and_build(start_group, start_frontend) -> None:
    group = await start_group()
    client = await start_frontend(group, "127.0.0.1:1")
    samples = await scraped(client)
    assert samples[f'pixelpod_frontend_group_up{{address="{group.address}"}}'] == 1
    assert samples['pixelpod_frontend_group_up{address="127.0.0.1:1"}'] == 0
    state = "pixelpod_frontend_group_state"
    assert samples[f'{state}{{address="{group.address}",{state}="ready"}}'] == 1
    assert samples[f'{state}{{address="127.0.0.1:1",{state}="gone"}}'] == 1
    assert any(re.fullmatch(r'pixelpod_frontend_build_info\{.*version="\d.*\}', name) for name in samples)
    unprefixed = [name for name in samples if not name.startswith("pixelpod_frontend_")]
    assert not unprefixed


async def test_groups_taken_out_leave_no_labels(start_group, start_frontend) -> None:
    """Label values stay as many as there are groups, however many came and went."""
    client = await start_frontend(await start_group())
    groups = client.frontend.groups
    kept = {group.address for group in groups}
    for number in range(1, 20):
        groups.set_addresses({*kept, f"127.0.0.1:{number}"})
        await asyncio.sleep(0.01)
    groups.set_addresses(kept)

    async def only_the_kept() -> bool:
        labels = [re.search('address="(.*?)"', name) for name in await scraped(client)]
        return {label[1] for label in labels if label} == kept

    await eventually(only_the_kept)
