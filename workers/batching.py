"""How a request's images are split into batches, and how long they are expected to take."""

from __future__ import annotations

from collections.abc import Iterable

from pixelpod.v1 import group_pb2, images_pb2
from workers.model_file import Bucket


def split_into_batches(request: group_pb2.ExecuteRequest, bucket: Bucket) -> list[group_pb2.RunBatch]:
    """Return batches of at most the bucket's largest size that together make the request's images, in their order.

    Each is padded to the smallest of the bucket's batch sizes that holds it.
    """
    parameters, largest = request.parameters, bucket.batch_sizes[-1]
    batches = []
    for first in range(0, len(parameters.seeds), largest):
        seeds = parameters.seeds[first : first + largest]
        batches.append(
            group_pb2.RunBatch(
                width=parameters.width,
                height=parameters.height,
                batch_size=bucket.padded_batch_size(len(seeds)),
                steps=parameters.steps,
                guidance_scale=parameters.guidance_scale,
                max_sequence_length=parameters.max_sequence_length,
                slots=[_slot(request, seed) for seed in seeds],
            )
        )
    return batches


def predict_seconds(batches: Iterable[group_pb2.RunBatch], measured: images_pb2.Bucket, default_steps: int) -> float:
    """Return how long `batches` should take, from what was measured of the smallest batch; 0 while nothing was.

    A batch of n times the smallest size is counted n times as long: true of a busy device, an upper bound for others.
    """
    beside_steps = measured.measured_seconds - default_steps * measured.step_seconds
    return sum(
        (beside_steps + batch.steps * measured.step_seconds) * batch.batch_size / measured.batch_sizes[0]
        for batch in batches
    )


def _slot(request: group_pb2.ExecuteRequest, seed: int) -> group_pb2.Slot:
    parameters = request.parameters
    negative_prompt = parameters.negative_prompt if parameters.HasField("negative_prompt") else None
    return group_pb2.Slot(prompt=request.prompt, negative_prompt=negative_prompt, seed=seed)
