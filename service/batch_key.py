"""What requests have in common that a group can compute in one batch."""

from __future__ import annotations

from typing import NamedTuple, Self

from pixelpod.v1 import group_pb2, images_pb2


class BatchKey(NamedTuple):
    """Equal for two images that can be mates."""

    width: int
    height: int
    steps: int
    guidance_scale: float
    max_sequence_length: int
    """Tokens."""
    negative_prompt: bool
    """Whether there is one."""

    @classmethod
    def of(cls, parameters: images_pb2.ResolvedParameters) -> Self:
        """Return the key of a request's images."""
        return cls(
            parameters.width,
            parameters.height,
            parameters.steps,
            parameters.guidance_scale,
            parameters.max_sequence_length,
            parameters.HasField("negative_prompt"),
        )

    @classmethod
    def of_waiting(cls, waiting: group_pb2.WaitingImages) -> Self:
        """Return the key of images that wait on a group."""
        return cls(
            waiting.width,
            waiting.height,
            waiting.steps,
            waiting.guidance_scale,
            waiting.max_sequence_length,
            waiting.negative_prompt,
        )
