"""Rank 0's main loop: it makes batches of requests, leads all ranks through each, and has the images delivered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pixelpod.server.errors import ComputationFailed, RequestError
from pixelpod.v1 import group_pb2, images_pb2
from workers.batch import BatchAborted, BatchResult, BatchRunner
from workers.boundary import LeaderBoundary
from workers.compile_reports import Report, gather_reports, total
from workers.control import ControlChannel
from workers.delivery import Delivery
from workers.families import NotFinite
from workers.metrics import GroupMetrics
from workers.queue import RequestQueue
from workers.request import AcceptedRequest, deadline_passed

logger = logging.getLogger(__name__)


def lead_batch(
    channel: ControlChannel,
    runner: BatchRunner,
    batch: group_pb2.RunBatch,
    wanted: Callable[[], bool] = lambda: True,
    on_step: Callable[[int], None] = lambda step: None,
    on_reports: Callable[[Sequence[Report]], None] = lambda reports: None,
) -> BatchResult:
    """Have all ranks compute `batch`. See `BatchRunner.run`.

    Args:
        channel: To the other ranks.
        runner: Computes rank 0's part.
        batch: What to compute.
        wanted: Tells at each boundary whether anybody still waits.
        on_step: Told the number of steps done, after each.
        on_reports: Told what each rank compiled for the batch, also when it was given up.
    """
    channel.send(group_pb2.Command(run_batch=batch))
    try:
        result = runner.run(batch, LeaderBoundary(channel, wanted), on_step)
    except BatchAborted:
        on_reports(gather_reports(channel, runner.compiles.take()))
        raise
    reports = gather_reports(channel, runner.compiles.take())
    on_reports(reports)
    result.seconds.compile = max(total(report).seconds for report in reports)
    return result


class Leader:
    """Computes accepted requests, one after the other.

    Args:
        channel: To the other ranks.
        runner: Computes rank 0's part of a batch.
        queue: Where requests come from.
        metrics: Where work is counted.
        identity: What every answer tells of its origin: model, revision, group and epoch.
        heartbeat_seconds: How often the other ranks hear of an idle rank 0.
        encoding_threads: For image files.
    """

    def __init__(
        self,
        channel: ControlChannel,
        runner: BatchRunner,
        queue: RequestQueue,
        metrics: GroupMetrics,
        identity: images_pb2.GenerateResponse,
        heartbeat_seconds: float,
        encoding_threads: int,
    ) -> None:
        self._channel = channel
        self._runner = runner
        self._queue = queue
        self._metrics = metrics
        self._identity = identity
        self._heartbeat_seconds = heartbeat_seconds
        self._pool = ThreadPoolExecutor(encoding_threads, thread_name_prefix="image-encoding")

    def run(self) -> None:
        """Work until the queue is closed and empty, then send the other ranks away.

        Raises:
            WorldBroken: if the ranks no longer work together.
        """
        while True:
            request = self._queue.take(self._heartbeat_seconds)
            if request is not None:
                self._compute(request)
            elif self._queue.closed:
                break
            else:
                self._channel.send(group_pb2.Command(heartbeat=group_pb2.Heartbeat()))
        self._channel.send(group_pb2.Command(shutdown=group_pb2.Shutdown()))

    def _compute(self, request: AcceptedRequest) -> None:
        message = request.message
        answer = images_pb2.GenerateResponse(request_id=message.request_id, parameters=message.parameters)
        answer.MergeFrom(self._identity)
        delivery = Delivery(request, answer, self._pool, self._metrics)
        self._metrics.queue_seconds.observe(answer.timings.queue_seconds)
        progress = _Progress(request, steps=sum(batch.steps for batch in request.batches))
        for batch in request.batches:
            try:
                result = lead_batch(
                    self._channel,
                    self._runner,
                    batch,
                    lambda: request.wanted,
                    progress.step_done,
                    partial(self._count_compiles, batch),
                )
            except BatchAborted as aborted:
                request.end(self._ending(request, aborted))
                break
            self._count(batch, result)
            delivery.add(result)
        request.seconds_left = 0.0

    def _count(self, batch: group_pb2.RunBatch, result: BatchResult) -> None:
        self._metrics.batch_size.observe(len(batch.slots))
        self._metrics.stage_took("encode", result.seconds.encode)
        self._metrics.stage_took("denoise", result.seconds.denoise)
        self._metrics.stage_took("decode", result.seconds.decode)

    def _count_compiles(self, batch: group_pb2.RunBatch, reports: Sequence[Report]) -> None:
        for report in reports:
            for component, compiles in report.items():
                self._metrics.compiled_after_ready(component, f"{batch.width}x{batch.height}", compiles.count)

    def _ending(self, request: AcceptedRequest, aborted: BatchAborted) -> RequestError:
        """Return the error of a request whose batch was given up."""
        if aborted.error is None:
            # Its caller left, and won't see this, or its time ran out.
            return deadline_passed()
        if isinstance(aborted.error, NotFinite):
            self._metrics.not_finite.inc()
            return ComputationFailed(
                "the model computed values that are not finite numbers; another seed or guidance_scale may do",
                reason="NOT_FINITE",
            )
        return ComputationFailed(
            f"the model failed; the group's log explains it under request {request.message.request_id}",
            reason="COMPUTATION_FAILED",
        )


class _Progress:
    """Counts one request's denoising steps over all of its batches."""

    def __init__(self, request: AcceptedRequest, steps: int) -> None:
        self._request = request
        self._steps = steps
        self._done = 0
        self._started = self._first_done = time.monotonic()

    def step_done(self, step: int) -> None:
        now = time.monotonic()
        self._done += 1
        if self._done == 1:
            # The text encoders' time is within; later steps tell better.
            seconds_a_step, self._first_done = now - self._started, now
        else:
            seconds_a_step = (now - self._first_done) / (self._done - 1)
        self._request.seconds_left = seconds_a_step * (self._steps - self._done)
        self._request.post_progress(self._done, self._steps)
