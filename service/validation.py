"""Validation: holds a request to its model's published limits, and resolves everything that it left open.

What comes out has nothing left to choose: the group computes exactly this, and the answer tells exactly this.
"""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from pixelpod.server.errors import InvalidRequest
from pixelpod.v1 import images_pb2
from service.prompts import check_prompt_bytes, check_visible
from service.sizes import resolve_bucket, size_text

SEEDS = 2**64
"""Seeds are unsigned 64-bit numbers."""

MAX_QUALITY = 100
"""Quality of JPEG and WEBP goes from 1 to this."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(frozen=True)
class ResolvedRequest:
    """A valid request: every parameter as it will be used, and what differs from what was asked for."""

    parameters: images_pb2.ResolvedParameters
    warnings: tuple[images_pb2.Warning, ...]


def resolve_request_id(request: images_pb2.GenerateRequest) -> str:
    """Return the caller's request id, or a drawn one where there is none.

    Raises:
        InvalidRequest: if it is too long or has other characters than the contract allows.
    """
    if not request.request_id:
        return uuid.uuid4().hex
    if not _REQUEST_ID.fullmatch(request.request_id):
        raise InvalidRequest(
            "request_id", "request_id must be 1 to 64 characters of A-Z a-z 0-9 . _ : -, or empty to have one drawn"
        )
    return request.request_id


def resolve_request(request: images_pb2.GenerateRequest, model: images_pb2.Model) -> ResolvedRequest:
    """Check `request` against what `model` publishes and resolve every default.

    Raises:
        InvalidRequest: naming the first field at fault, the limit and what to do.
    """
    limits, defaults = model.limits, model.defaults
    check_prompts(request, model)
    size_policy = _choice(request, "size_policy", images_pb2.SIZE_POLICY_EXACT)
    priority = _choice(request, "priority", images_pb2.PRIORITY_NORMAL)
    output_format = _choice(request, "output_format", defaults.output_format)
    num_images = _integer(request, "num_images", defaults.num_images, limits.num_images)
    bucket = resolve_bucket(request, model)
    _check_pixels(bucket, num_images, limits.max_pixels)
    parameters = images_pb2.ResolvedParameters(
        width=bucket.width,
        height=bucket.height,
        num_images=num_images,
        steps=_integer(request, "steps", defaults.steps, limits.steps),
        guidance_scale=_guidance_scale(request, model),
        max_sequence_length=_integer(
            request, "max_sequence_length", defaults.max_sequence_length, limits.max_sequence_length
        ),
        seeds=resolve_seeds(request, num_images),
        output_format=images_pb2.OutputFormat.ValueType(output_format),
        quality=_quality(request, output_format, defaults.quality),
        size_policy=images_pb2.SizePolicy.ValueType(size_policy),
        priority=images_pb2.Priority.ValueType(priority),
        negative_prompt=request.negative_prompt if request.HasField("negative_prompt") else None,
    )
    return ResolvedRequest(parameters, tuple(_warnings(request, parameters, model)))


def check_prompts(request: images_pb2.GenerateRequest, model: images_pb2.Model) -> None:
    """Refuse prompts that are too long or show nothing, and a negative prompt where the model takes none.

    Raises:
        InvalidRequest: naming the prompt at fault.
    """
    for field in ("prompt", "negative_prompt"):
        check_prompt_bytes(field, getattr(request, field), model.limits.max_prompt_bytes)
    check_visible("prompt", request.prompt)
    if request.HasField("negative_prompt") and not model.limits.negative_prompt:
        raise InvalidRequest("negative_prompt", f"model {model.name} takes no negative_prompt: leave it out")


def resolve_seeds(request: images_pb2.GenerateRequest, num_images: int) -> list[int]:
    """Return one seed per image: the caller's first seed, or a drawn one, and those that follow it modulo 2^64."""
    first = request.seed if request.HasField("seed") else secrets.randbelow(SEEDS)
    return [(first + index) % SEEDS for index in range(num_images)]


def _choice(request: images_pb2.GenerateRequest, field: str, default: int) -> int:
    """Return the value of the enum field `field`, with UNSPECIFIED resolved to `default`."""
    value: int = getattr(request, field)
    enum = request.DESCRIPTOR.fields_by_name[field].enum_type
    assert enum is not None
    if value not in enum.values_by_number:
        choices = ", ".join(known.name for known in enum.values if known.number != 0)
        raise InvalidRequest(field, f"{field} {value} is unknown; choose one of {choices}, or leave it out")
    return value or default


def _integer(request: images_pb2.GenerateRequest, field: str, default: int, limits: images_pb2.IntegerLimits) -> int:
    """Return the whole number of `field`, within `limits`, or `default` where it is left out."""
    if not request.HasField(field):  # type: ignore[arg-type]
        return default
    value: int = getattr(request, field)
    if limits.choices and value not in limits.choices:
        choices = ", ".join(str(choice) for choice in limits.choices)
        raise InvalidRequest(field, f"{field} {value} is not served; choose one of {choices}")
    _check_bounds(field, value, limits.minimum, limits.maximum)
    return value


def _check_bounds(field: str, value: float, minimum: float, maximum: float) -> None:
    """Refuse what is outside of the inclusive bounds; NaN is outside of any."""
    if not minimum <= value <= maximum:
        raise InvalidRequest(field, f"{field} {value} is out of bounds; choose {minimum} to {maximum}")


def _guidance_scale(request: images_pb2.GenerateRequest, model: images_pb2.Model) -> float:
    if not request.HasField("guidance_scale"):
        return model.defaults.guidance_scale
    limits = model.limits.guidance_scale
    _check_bounds("guidance_scale", request.guidance_scale, limits.minimum, limits.maximum)
    return request.guidance_scale if model.limits.guidance_used else model.defaults.guidance_scale


def _check_pixels(bucket: images_pb2.Bucket, num_images: int, max_pixels: int) -> None:
    pixels = bucket.width * bucket.height
    if pixels * num_images > max_pixels:
        raise InvalidRequest(
            "num_images",
            f"num_images {num_images} of {size_text(bucket.width, bucket.height)} are {pixels * num_images} pixels, "
            f"over the limit of {max_pixels} a request: ask for at most {max_pixels // pixels} of this size, "
            "or for a smaller size",
        )


def _quality(request: images_pb2.GenerateRequest, output_format: int, default: int) -> int:
    """Return 1 to 100 for lossy formats, 0 for PNG."""
    if output_format == images_pb2.OUTPUT_FORMAT_PNG:
        if request.HasField("quality"):
            raise InvalidRequest("quality", "quality does not apply to PNG, which is lossless: leave it out")
        return 0
    if not request.HasField("quality"):
        return default
    _check_bounds("quality", request.quality, 1, MAX_QUALITY)
    return request.quality


def _warnings(
    request: images_pb2.GenerateRequest, parameters: images_pb2.ResolvedParameters, model: images_pb2.Model
) -> Iterator[images_pb2.Warning]:
    """Yield a warning for everything in `request` that `parameters` or the model does not follow."""
    asked, served = (request.width, request.height), (parameters.width, parameters.height)
    if request.HasField("width") and asked != served:
        yield images_pb2.Warning(
            code=images_pb2.WARNING_CODE_SIZE_ADJUSTED,
            field="width",
            message=f"{size_text(*served)} is the nearest size to {size_text(*asked)} that model {model.name} serves",
        )
    if request.HasField("guidance_scale") and not model.limits.guidance_used:
        yield images_pb2.Warning(
            code=images_pb2.WARNING_CODE_GUIDANCE_IGNORED,
            field="guidance_scale",
            message=f"model {model.name} does not use guidance_scale; {request.guidance_scale:g} had no effect",
        )
    if request.HasField("negative_prompt") and parameters.guidance_scale <= 1:
        yield images_pb2.Warning(
            code=images_pb2.WARNING_CODE_NEGATIVE_PROMPT_IGNORED,
            field="negative_prompt",
            message=f"negative_prompt has no effect at guidance_scale {parameters.guidance_scale:g}; set it above 1",
        )
