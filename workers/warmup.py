"""Warm-up: every graph that a request can reach runs once, through the real path, before the group is READY (law 7)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import NoReturn

from pixelpod.v1 import group_pb2
from workers.batch import BatchAborted, BatchResult, BatchRunner
from workers.compile_reports import gather_reports, total
from workers.control import ControlChannel
from workers.errors import ModelRefused
from workers.estimates import Estimates
from workers.families import Family
from workers.leader import lead_batch
from workers.model_file import Bucket, ModelFile, OnWarmUpFailure
from workers.status import StatusBoard

logger = logging.getLogger(__name__)

_PROMPT = "a lighthouse on a cliff at dawn"
_OVERLONG_PROMPT = "word " * 1024
"""Fills every token that any encoder reads: with no padding to mask, attention is another graph."""
_WARMING_STEPS = 2
"""From the second on, every step starts with what a step returned, which can lie otherwise in memory than noise."""
_MEASURED_STEPS = 4
"""Enough for the mean of a step; the default number of steps is extrapolated from it."""


class WarmUpFailed(Exception):
    """A batch that a request could ask for can't be computed, on any rank.

    Args:
        batch: Which.
        error: What rank 0 met.
    """

    def __init__(self, batch: group_pb2.RunBatch, error: Exception | None) -> None:
        shape = f"batch size {batch.batch_size}, max_sequence_length {batch.max_sequence_length}"
        reason = str(error).strip().split("\n", 1)[0]
        super().__init__(f"{batch.width}x{batch.height} at {shape}: {type(error).__name__}: {reason}")


def warm_up(
    model: ModelFile, channel: ControlChannel, runner: BatchRunner, status: StatusBoard, estimates: Estimates
) -> None:
    """Lead the ranks through every graph of every bucket, measure each bucket, and publish it as warm.

    A bucket that fails ends the group, or stays cold, as the model file says; the default size has to be warm in any
    case. The first heartbeat tells the other ranks that warm-up is over, a shutdown that the group ends.

    Raises:
        ModelRefused: if the group must not serve; it names the bucket and its error.
        WorldBroken: if the ranks no longer work together.
    """
    status.enter(group_pb2.GROUP_STATE_WARMING, "buckets compile")
    runner.submit_graphs(batch for bucket in model.buckets for batch in warming_batches(model, bucket, runner.family))
    for bucket in model.buckets:
        try:
            _warm_bucket(model, bucket, channel, runner, status, estimates)
        except WarmUpFailed as failure:
            if model.on_warm_up_failure is OnWarmUpFailure.REFUSE or bucket == model.default_bucket:
                _refuse(model, channel, failure)
            logger.error("bucket failed; the group serves without it: %s", failure)
    try:
        for batch in overlong_prompt_batches(model):
            _lead(channel, runner, batch)
    except WarmUpFailed as failure:
        _refuse(model, channel, failure)
    channel.send(group_pb2.Command(heartbeat=group_pb2.Heartbeat()))
    _tell_compiles(channel, runner)


def _warm_bucket(
    model: ModelFile,
    bucket: Bucket,
    channel: ControlChannel,
    runner: BatchRunner,
    status: StatusBoard,
    estimates: Estimates,
) -> None:
    started = time.monotonic()
    for batch in warming_batches(model, bucket, runner.family):
        _lead(channel, runner, batch)
    _measure(model, bucket, channel, runner, estimates)
    measured = estimates.batch(bucket.width, bucket.height, bucket.batch_sizes[0])
    status.tell_warm(bucket.width, bucket.height, measured.total(model.defaults.steps), measured.step)
    seconds = round(time.monotonic() - started, 2)
    logger.info("bucket warm", extra={"bucket": f"{bucket.width}x{bucket.height}", "seconds": seconds})


def _lead(channel: ControlChannel, runner: BatchRunner, batch: group_pb2.RunBatch) -> BatchResult:
    try:
        return lead_batch(channel, runner, batch)
    except BatchAborted as aborted:
        raise WarmUpFailed(batch, aborted.error) from aborted.error


def _refuse(model: ModelFile, channel: ControlChannel, failure: WarmUpFailed) -> NoReturn:
    channel.send(group_pb2.Command(shutdown=group_pb2.Shutdown()))
    raise ModelRefused(f"model {model.name}: warm-up failed for bucket {failure}") from failure


def _tell_compiles(channel: ControlChannel, runner: BatchRunner) -> None:
    """Log what each rank compiled, and have every compile from now on stand out."""
    totals = [total(report) for report in gather_reports(channel, runner.compiles.by_component())]
    runner.compiles.expect_no_more()
    logger.info(
        "warm-up compiled, by rank",
        extra={
            "compiled": [compiles.compiled for compiles in totals],
            "cached": [compiles.cached for compiles in totals],
            "compile_seconds": [round(compiles.seconds, 2) for compiles in totals],
        },
    )


def warming_batches(model: ModelFile, bucket: Bucket, family: Family) -> Iterator[group_pb2.RunBatch]:
    """Yield one batch for each graph of `bucket`: batch size, prompt length, with and without a guidance pass."""
    for batch_size in bucket.batch_sizes:
        for max_sequence_length in model.limits.max_sequence_lengths:
            for guidance_scale in _guidance_scales(model, family):
                yield _batch(bucket, batch_size, max_sequence_length, guidance_scale, _WARMING_STEPS)


def overlong_prompt_batches(model: ModelFile) -> Iterator[group_pb2.RunBatch]:
    """Yield one batch for each prompt length, whose prompt is cut. Encoders know no buckets: one will do."""
    bucket = model.default_bucket
    for max_sequence_length in model.limits.max_sequence_lengths:
        yield _batch(
            bucket,
            bucket.batch_sizes[0],
            max_sequence_length,
            model.defaults.guidance_scale,
            _WARMING_STEPS,
            _OVERLONG_PROMPT,
        )


def proof_batch(model: ModelFile) -> group_pb2.RunBatch:
    """Return the least that a group can draw."""
    bucket = min(model.buckets, key=lambda bucket: bucket.width * bucket.height)
    lengths = model.limits.max_sequence_lengths
    return _batch(bucket, bucket.batch_sizes[0], lengths[0], model.defaults.guidance_scale, steps=1)


def _measure(
    model: ModelFile, bucket: Bucket, channel: ControlChannel, runner: BatchRunner, estimates: Estimates
) -> None:
    """Time the smallest batch of a bucket, with a prompt that no text encoder has seen."""
    defaults = model.defaults
    steps = min(defaults.steps, _MEASURED_STEPS)
    batch = _batch(
        bucket,
        bucket.batch_sizes[0],
        defaults.max_sequence_length,
        defaults.guidance_scale,
        steps,
        f"{_PROMPT}, {bucket.width}x{bucket.height}",
    )
    seconds = _lead(channel, runner, batch).seconds
    estimates.observe(batch, seconds.denoise / steps, seconds.encode + seconds.decode)


def _guidance_scales(model: ModelFile, family: Family) -> list[float]:
    """Return one guidance scale within the limits for each way that the family computes a step."""
    limits = model.limits.guidance_scale
    scales = (limits.max, limits.min, model.defaults.guidance_scale)
    return list({family.uses_guidance_pass(scale): scale for scale in scales}.values())


def _batch(
    bucket: Bucket,
    batch_size: int,
    max_sequence_length: int,
    guidance_scale: float,
    steps: int,
    prompt: str = _PROMPT,
) -> group_pb2.RunBatch:
    return group_pb2.RunBatch(
        width=bucket.width,
        height=bucket.height,
        batch_size=batch_size,
        steps=steps,
        guidance_scale=guidance_scale,
        max_sequence_length=max_sequence_length,
        slots=[group_pb2.Slot(prompt=prompt, seed=seed) for seed in range(batch_size)],
    )
