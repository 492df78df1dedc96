"""A group whose accelerator is a clock: the real endpoint, queue and leader, over batches that only take time.

python -m benchmarks.timed_group --listen 127.0.0.1:7861 [--step-seconds S] [--image-bytes N]

For measuring what frontends and groups add, and how they behave under load, without the noise of a real model.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import distributed as dist

from benchmarks.timed_model import BATCH_SIZES, STEPS, timed_model
from pixelpod.server.logs import configure_logging
from pixelpod.server.memory import keep_freed_memory
from pixelpod.server.metrics import MetricsServer
from pixelpod.v1 import group_pb2, images_pb2
from workers.batch import BatchAborted, BatchResult, SlotNotes, StageSeconds
from workers.boundary import SUCCEEDED, Boundary
from workers.compiles import Compiles
from workers.control import ControlChannel
from workers.delivery import Deliveries, Encode
from workers.endpoint import Endpoint
from workers.estimates import Estimates
from workers.images import EncodedImage, encode_image
from workers.leader import Leader
from workers.liveness import LivenessFile
from workers.metrics import GroupMetrics
from workers.queue import RequestQueue
from workers.settings import GroupSettings
from workers.stall import StallWatch
from workers.status import StatusBoard
from workers.vitals import Vitals


class NoCompiles:
    """Tells that nothing was compiled."""

    compiling = False

    def take(self) -> dict[str, Compiles]:
        return {}


class TimedRunner:
    """Takes the time of a batch, and returns black images."""

    compiles = NoCompiles()

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds = step_seconds

    def run(
        self, batch: group_pb2.RunBatch, boundary: Boundary, on_step: Callable[[int], None] = lambda step: None
    ) -> BatchResult:
        began = time.monotonic()
        for step in range(1, batch.steps + 1):
            if (left := began + step * self.step_seconds - time.monotonic()) > 0:
                time.sleep(left)
            if boundary.agree(SUCCEEDED) != group_pb2.VERDICT_CONTINUE:
                raise BatchAborted(None)
            on_step(step)
        slots = len(batch.slots)
        return BatchResult(
            pixels=np.zeros((slots, batch.height, batch.width, 3), dtype=np.uint8),
            not_finite=(),
            notes=[SlotNotes((), ())] * slots,
            seconds=StageSeconds(denoise=time.monotonic() - began),
            encoded=slots,
            cached=0,
        )

    def out_of_memory(self, error: Exception) -> bool:
        return False


def image_of(image_bytes: int) -> Encode:
    """Return what makes every image file so many bytes, without encoding anything."""
    data = os.urandom(image_bytes)
    image = EncodedImage(data, "image/png", 64, 64, hashlib.sha256(data).hexdigest())
    return lambda *arguments: image


def serve(
    listen: str, metrics: str, name: str, runner: TimedRunner, steps: int = STEPS, encode: Encode = encode_image
) -> None:
    """Serve until SIGTERM."""
    settings = GroupSettings(model=Path("unused"), listen=listen, metrics=None)
    model, estimates = timed_model(steps), Estimates()
    queue = RequestQueue(estimates, 2 * BATCH_SIZES[-1], settings.in_flight_limit, settings.batch_window_seconds)
    status = StatusBoard(name, model, ranks=1, epoch=time.time_ns() // 1_000_000, queue=queue)
    group_metrics = GroupMetrics(model, queue, status)
    signs = LivenessFile.create(Path(tempfile.mkdtemp()) / "signs", ranks=0)
    endpoint = Endpoint(settings, model, queue, status, group_metrics, Vitals(signs, 5.0, 120.0))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    identity = images_pb2.GenerateResponse(model=model.name, revision=model.revision, group=name, epoch=1)
    leader = Leader(
        ControlChannel(timeout_seconds=60),
        cast(Any, runner),
        queue,
        group_metrics,
        Deliveries(identity, group_metrics, threads=2, encode=encode),
        heartbeat_seconds=1.0,
        stall_watch=StallWatch(10.0, 60.0, lambda: False, lambda seconds: None),
        proof=group_pb2.RunBatch(width=64, height=64, batch_size=1, steps=1),
    )
    for bucket in model.buckets:
        for size in BATCH_SIZES:
            measured = group_pb2.RunBatch(width=bucket.width, height=bucket.height, batch_size=size)
            estimates.observe(measured, runner.step_seconds, 0.0)
        status.tell_warm(bucket.width, bucket.height, steps * runner.step_seconds, runner.step_seconds)
    metrics_server = MetricsServer(metrics, group_metrics.registry)
    port = endpoint.start()
    endpoint.drain_on(signal.SIGTERM, signal.SIGINT)
    status.enter(group_pb2.GROUP_STATE_READY)
    print(f"127.0.0.1:{port}", flush=True)
    leader.run()
    endpoint.close()
    metrics_server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--metrics", default="127.0.0.1:0")
    parser.add_argument("--name", default="timed")
    parser.add_argument("--step-seconds", type=float, default=0.025, help="of a batch of any size")
    parser.add_argument("--steps", type=int, default=STEPS, help="of a request")
    parser.add_argument("--image-bytes", type=int, default=0, help="of every answer; 0 for a real PNG of black pixels")
    arguments = parser.parse_args()
    encode = image_of(arguments.image_bytes) if arguments.image_bytes else encode_image
    configure_logging("text", arguments.name, "WARNING")
    keep_freed_memory()
    runner = TimedRunner(arguments.step_seconds)
    serve(arguments.listen, arguments.metrics, arguments.name, runner, arguments.steps, encode)


if __name__ == "__main__":
    main()
