"""What is served: the models, with the limits and defaults of every parameter."""

from __future__ import annotations

from dataclasses import dataclass

from pixelpod.client.messages import enum_name, from_message
from pixelpod.v1 import images_pb2


@dataclass(frozen=True)
class Bucket:
    """A size that is served."""

    width: int
    """Pixels."""
    height: int
    """Pixels."""
    batch_sizes: tuple[int, ...]
    """Images computed together."""
    warm: bool
    """Every graph of the bucket is compiled."""
    measured_seconds: float
    """Seconds for the smallest batch at the default steps; 0 while unknown."""
    step_seconds: float
    """Seconds of one denoising step of the smallest batch; 0 while unknown."""


@dataclass(frozen=True)
class IntegerLimits:
    """Inclusive bounds of a whole number."""

    minimum: int
    """Smallest."""
    maximum: int
    """Largest."""
    choices: tuple[int, ...]
    """When not empty, only these values are served."""


@dataclass(frozen=True)
class NumberLimits:
    """Inclusive bounds of a number."""

    minimum: float
    """Smallest."""
    maximum: float
    """Largest."""


@dataclass(frozen=True)
class Limits:
    """What requests may ask for."""

    steps: IntegerLimits
    """Denoising steps."""
    guidance_scale: NumberLimits
    """How strongly the prompt steers."""
    guidance_used: bool
    """False: the model ignores guidance_scale."""
    num_images: IntegerLimits
    """Images per request."""
    max_sequence_length: IntegerLimits
    """Prompt length in tokens."""
    max_prompt_bytes: int
    """Bytes of the prompt, and of the negative prompt, in UTF-8."""
    negative_prompt: bool
    """False: requests with a negative prompt are refused."""
    max_pixels: int
    """width x height x num_images of one request, in pixels."""


@dataclass(frozen=True)
class Defaults:
    """The value of every parameter that a request leaves out."""

    width: int
    """Pixels."""
    height: int
    """Pixels."""
    num_images: int
    """Images."""
    steps: int
    """Denoising steps."""
    guidance_scale: float
    """Guidance."""
    max_sequence_length: int
    """Tokens."""
    output_format: str
    """"PNG", "JPEG" or "WEBP"."""
    quality: int
    """For JPEG and WEBP."""


@dataclass(frozen=True)
class Model:
    """One served model."""

    name: str
    """The name that requests use."""
    revision: str
    """Which weights."""
    family: str
    """The pipeline family: "flux", "flux2" or "sd3"."""
    buckets: tuple[Bucket, ...]
    """The sizes served."""
    limits: Limits
    """What requests may ask for."""
    defaults: Defaults
    """What requests get that do not ask."""
    ready_groups: int
    """How many groups are ready to serve it."""


def model_from(message: images_pb2.Model) -> Model:
    """Return the model that `message` describes."""
    buckets = (from_message(Bucket, bucket, batch_sizes=tuple(bucket.batch_sizes)) for bucket in message.buckets)
    output_format = enum_name(message.defaults, "output_format")
    return from_message(
        Model,
        message,
        buckets=tuple(buckets),
        limits=_limits_from(message.limits),
        defaults=from_message(Defaults, message.defaults, output_format=output_format),
    )


def _limits_from(message: images_pb2.Limits) -> Limits:
    return from_message(
        Limits,
        message,
        steps=_integer_limits_from(message.steps),
        guidance_scale=from_message(NumberLimits, message.guidance_scale),
        num_images=_integer_limits_from(message.num_images),
        max_sequence_length=_integer_limits_from(message.max_sequence_length),
    )


def _integer_limits_from(message: images_pb2.IntegerLimits) -> IntegerLimits:
    return from_message(IntegerLimits, message, choices=tuple(message.choices))
