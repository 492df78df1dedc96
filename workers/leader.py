"""Rank 0's main loop: it makes batches of requests, leads all ranks through each, and has the images delivered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from pixelpod.server.errors import ComputationFailed, RequestError
from pixelpod.v1 import group_pb2
from workers.batch import BatchAborted, BatchResult, BatchRunner
from workers.batching import make_batch
from workers.boundary import LeaderBoundary
from workers.compile_reports import Report, gather_reports, total
from workers.control import ControlChannel, WorldBroken
from workers.delivery import Deliveries, Delivery
from workers.metrics import GroupMetrics
from workers.progress import Progress
from workers.queue import RequestQueue
from workers.request import AcceptedRequest, RequestedImage, deadline_passed
from workers.stall import StallWatch

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
    """Computes accepted requests, as many of their images at once as fit together.

    Args:
        channel: To the other ranks.
        runner: Computes rank 0's part of a batch.
        queue: Where requests come from; its estimates are told how long batches took.
        metrics: Where work is counted.
        deliveries: Where images go.
        heartbeat_seconds: How often the other ranks hear of an idle rank 0.
        stall_watch: Told of every progress.
        proof: The batch that shows whether the group still works, after it ran out of memory.
    """

    def __init__(
        self,
        channel: ControlChannel,
        runner: BatchRunner,
        queue: RequestQueue,
        metrics: GroupMetrics,
        deliveries: Deliveries,
        heartbeat_seconds: float,
        stall_watch: StallWatch,
        proof: group_pb2.RunBatch,
    ) -> None:
        self._channel = channel
        self._runner = runner
        self._queue = queue
        self._estimates = queue.estimates
        self._metrics = metrics
        self._deliveries = deliveries
        self._heartbeat_seconds = heartbeat_seconds
        self._stall_watch = stall_watch
        self._proof = proof
        self._begun: dict[AcceptedRequest, tuple[Delivery, Progress]] = {}
        """Of the requests in the present batch, and those that have images for another one."""

    def run(self) -> None:
        """Work until the queue is closed and empty, then send the other ranks away.

        Raises:
            WorldBroken: if the ranks no longer work together.
        """
        while True:
            images = self._queue.take(self._heartbeat_seconds)
            if images:
                self._compute(images)
                self._stall_watch.idle()
                self._begun = {
                    request: work
                    for request, work in self._begun.items()
                    if request.wanted and request.taken < request.images
                }
                self._queue.batch_ended()
            elif self._queue.closed:
                break
            else:
                self._channel.send(group_pb2.Command(heartbeat=group_pb2.Heartbeat()))
        self._channel.send(group_pb2.Command(shutdown=group_pb2.Shutdown()))

    def _compute(self, images: Sequence[RequestedImage]) -> None:
        """Compute one batch and have its images delivered."""
        batch = make_batch(images)
        requests = list(dict.fromkeys(image.request for image in images))
        work = [self._begin(request) for request in requests]
        for _, progress in work:
            progress.batch_begins(batch)

        def step_done(step: int) -> None:
            for _, progress in work:
                progress.step_done(step)

        expected = self._estimates.batch(batch.width, batch.height, batch.batch_size)

        def wanted() -> bool:
            # Asked at every boundary, which is progress.
            self._stall_watch.progress(max(expected.step, expected.beside))
            return any(request.wanted for request in requests)

        wanted()
        try:
            result = lead_batch(
                self._channel, self._runner, batch, wanted, step_done, partial(self._count_compiles, batch)
            )
        except BatchAborted as aborted:
            self._give_up(images, requests, aborted)
            return
        self._count(batch, result)
        for delivery, progress in work:
            delivery.add_seconds(result.seconds)
            progress.batch_done()
        self._deliver(images, result)

    def _begin(self, request: AcceptedRequest) -> tuple[Delivery, Progress]:
        """Return what is kept of a request from its first batch to its end."""
        if request not in self._begun:
            self._begun[request] = self._deliveries.begin(request), Progress(request, self._estimates)
        return self._begun[request]

    def _deliver(self, images: Sequence[RequestedImage], result: BatchResult) -> None:
        if result.pixels is None:
            raise ValueError("rank 0 decodes")
        for slot, image in enumerate(images):
            if not image.request.wanted:
                continue
            if slot in result.not_finite:
                self._metrics.not_finite.inc()
                _fail(image.request, _not_finite())
            else:
                delivery, _ = self._begun[image.request]
                delivery.add(image.index, result.pixels[slot], result.notes[slot])

    def _give_up(
        self, images: Sequence[RequestedImage], requests: Sequence[AcceptedRequest], aborted: BatchAborted
    ) -> None:
        """End the requests of a batch that all ranks gave up.

        Of several, only one may be at fault: each is tried again by itself.
        """
        if aborted.error is not None and self._runner.out_of_memory(aborted.error):
            self._prove()
        if aborted.error is not None and len(requests) > 1:
            for request in requests:
                self._compute([image for image in images if image.request is request])
            return
        for request in requests:
            # Without an error, its caller left, and won't see this, or its time ran out.
            _fail(request, deadline_passed() if aborted.error is None else _model_failed(request))

    def _prove(self) -> None:
        """Draw a small image for nobody: memory that is full may stay full.

        Raises:
            WorldBroken: if that fails.
        """
        self._metrics.out_of_memory.inc()
        logger.warning("out of memory; the group draws a small image before it goes on")
        try:
            lead_batch(self._channel, self._runner, self._proof)
        except BatchAborted as aborted:
            self._channel.send(group_pb2.Command(shutdown=group_pb2.Shutdown()))
            raise WorldBroken("out of memory, and then a small image failed too") from aborted.error

    def _count(self, batch: group_pb2.RunBatch, result: BatchResult) -> None:
        seconds = result.seconds
        self._estimates.observe(batch, seconds.denoise / batch.steps, seconds.encode + seconds.decode)
        self._metrics.batch_size.observe(len(batch.slots))
        self._metrics.prompts(result.encoded, result.cached)
        self._metrics.stage_took("encode", seconds.encode)
        self._metrics.stage_took("denoise", seconds.denoise)
        self._metrics.stage_took("decode", seconds.decode)

    def _count_compiles(self, batch: group_pb2.RunBatch, reports: Sequence[Report]) -> None:
        for report in reports:
            for component, compiles in report.items():
                self._metrics.compiled_after_ready(component, f"{batch.width}x{batch.height}", compiles.count)


def _fail(request: AcceptedRequest, error: RequestError) -> None:
    """End a request, and compute no more of its images."""
    request.abandon()
    request.end(error)


def _not_finite() -> ComputationFailed:
    return ComputationFailed(
        "the model computed values that are not finite numbers; another seed or guidance_scale may do",
        reason="NOT_FINITE",
    )


def _model_failed(request: AcceptedRequest) -> ComputationFailed:
    return ComputationFailed(
        f"the model failed; the group's log explains it under request {request.message.request_id}",
        reason="COMPUTATION_FAILED",
    )
