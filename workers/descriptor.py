"""What a group publishes about its model: the model file, in the words of the public contract."""

from __future__ import annotations

from pixelpod.v1 import images_pb2
from workers.model_file import Limits, ModelFile

CONTRACT_VERSION = 3
"""The version of pixelpod/v1/group.proto that this group speaks."""


def describe(model: ModelFile) -> images_pb2.Model:
    """Return the model's descriptor before its weights are loaded: no bucket is warm.

    What only the loaded model knows stays unset: limits.guidance_used and limits.negative_prompt.
    """
    return images_pb2.Model(
        name=model.name,
        revision=model.revision,
        family=model.family,
        buckets=[
            images_pb2.Bucket(width=bucket.width, height=bucket.height, batch_sizes=bucket.batch_sizes)
            for bucket in model.buckets
        ],
        limits=_describe_limits(model.limits, largest_area=max(b.width * b.height for b in model.buckets)),
        defaults=images_pb2.Defaults(
            width=model.defaults.width,
            height=model.defaults.height,
            num_images=model.defaults.num_images,
            steps=model.defaults.steps,
            guidance_scale=model.defaults.guidance_scale,
            max_sequence_length=model.defaults.max_sequence_length,
            output_format=images_pb2.OutputFormat.Value(f"OUTPUT_FORMAT_{model.defaults.output_format}"),
            quality=model.defaults.quality,
        ),
    )


def _describe_limits(limits: Limits, largest_area: int) -> images_pb2.Limits:
    lengths = sorted(limits.max_sequence_lengths)
    return images_pb2.Limits(
        steps=images_pb2.IntegerLimits(minimum=limits.steps.min, maximum=limits.steps.max, choices=limits.steps_served),
        guidance_scale=images_pb2.NumberLimits(minimum=limits.guidance_scale.min, maximum=limits.guidance_scale.max),
        num_images=images_pb2.IntegerLimits(minimum=limits.num_images.min, maximum=limits.num_images.max),
        max_sequence_length=images_pb2.IntegerLimits(minimum=lengths[0], maximum=lengths[-1], choices=lengths),
        max_prompt_bytes=limits.max_prompt_bytes,
        max_pixels=largest_area * limits.num_images.max,
    )
