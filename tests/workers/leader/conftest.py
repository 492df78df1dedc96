"""A leader with a real model in a world of one rank."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from pixelpod.v1 import images_pb2
from tests.workers.computing import load_single
from tests.workers.leader.leading import Led
from tests.workers.models import make_queue
from workers.batch import BatchRunner
from workers.compiles import CompileTracker
from workers.control import ControlChannel
from workers.delivery import Deliveries
from workers.devices import device_named
from workers.families import Family
from workers.leader import Leader
from workers.metrics import GroupMetrics
from workers.model_file import Bucket, FamilyName, ModelFile
from workers.stall import StallWatch
from workers.status import StatusBoard
from workers.warmup import proof_batch


@pytest.fixture(scope="module")
def family(tiny_model: Callable[[FamilyName], ModelFile]) -> Family:
    """Return a model whose larger requests take several batches."""
    return load_single(tiny_model(FamilyName.SD3), buckets=(Bucket(width=64, height=64, batch_sizes=(1, 2)),))


@pytest.fixture(scope="module")
def runner(family: Family) -> Iterator[BatchRunner]:
    with CompileTracker() as compiles:
        yield BatchRunner(
            family, device_named("cpu"), compiles, decodes=True, run_ahead_steps=2, prompt_cache_bytes=1_000_000
        )


@pytest.fixture
async def led(channel: ControlChannel, runner: BatchRunner) -> AsyncIterator[Led]:
    model, queue = runner.family.model, make_queue()
    metrics = GroupMetrics(model, queue, StatusBoard("group-a", model, 1, 1, queue))
    identity = images_pb2.GenerateResponse(model=model.name, revision=model.revision, group="group-a", epoch=99)
    leader = Leader(
        channel,
        runner,
        queue,
        metrics,
        Deliveries(identity, metrics, threads=2),
        heartbeat_seconds=0.05,
        stall_watch=StallWatch(10.0, 60.0, lambda: False, lambda seconds: None),
        proof=proof_batch(model),
    )
    thread = threading.Thread(target=leader.run)
    thread.start()
    yield Led(leader, queue, metrics, model.buckets[0])
    queue.close()
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()
