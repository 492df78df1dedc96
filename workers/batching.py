"""Which images can be computed together, and the batch that is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pixelpod.v1 import group_pb2
from workers.model_file import Bucket

if TYPE_CHECKING:
    from workers.request import RequestedImage


@dataclass(frozen=True)
class BatchKey:
    """What the images of a batch have in common: one graph and one schedule."""

    bucket: Bucket
    steps: int
    guidance_scale: float
    max_sequence_length: int
    """Tokens."""
    negative_prompt: bool
    """Whether there is one."""
    alone: str
    """The request's id if it shall have no mates; empty for others."""

    @classmethod
    def of(cls, request: group_pb2.ExecuteRequest, bucket: Bucket) -> Self:
        """Return the key of the images of a request for this bucket."""
        parameters = request.parameters
        return cls(
            bucket=bucket,
            steps=parameters.steps,
            guidance_scale=parameters.guidance_scale,
            max_sequence_length=parameters.max_sequence_length,
            negative_prompt=parameters.HasField("negative_prompt"),
            alone=request.request_id if request.alone else "",
        )


def batch_sizes(images: int, bucket: Bucket) -> list[int]:
    """Return the sizes of the batches that so many images of one key take: full ones, and a padded rest."""
    largest = bucket.batch_sizes[-1]
    full, rest = divmod(images, largest)
    return [largest] * full + ([bucket.padded_batch_size(rest)] if rest else [])


def make_batch(images: Sequence[RequestedImage]) -> group_pb2.RunBatch:
    """Return one batch of images of the same key, padded to the smallest of the bucket's sizes that holds them."""
    key = images[0].request.key
    return group_pb2.RunBatch(
        width=key.bucket.width,
        height=key.bucket.height,
        batch_size=key.bucket.padded_batch_size(len(images)),
        steps=key.steps,
        guidance_scale=key.guidance_scale,
        max_sequence_length=key.max_sequence_length,
        slots=[_slot(image) for image in images],
    )


def _slot(image: RequestedImage) -> group_pb2.Slot:
    message = image.request.message
    parameters = message.parameters
    negative_prompt = parameters.negative_prompt if parameters.HasField("negative_prompt") else None
    return group_pb2.Slot(prompt=message.prompt, negative_prompt=negative_prompt, seed=parameters.seeds[image.index])
