"""What a group refuses. Frontends validated already; this keeps every other shape from the device (law 3)."""

from __future__ import annotations

from collections.abc import Sequence

from pixelpod.server.errors import InvalidRequest, Unavailable, UnknownModel
from pixelpod.v1 import group_pb2
from workers.model_file import Bucket, ModelFile


def check_request(request: group_pb2.ExecuteRequest, model: ModelFile) -> Bucket:
    """Return the bucket that computes `request`.

    Raises:
        UnknownModel: if it is for another model.
        InvalidRequest: if a parameter is not served; the message names the field and the limit.
    """
    if request.model != model.name:
        raise UnknownModel(f"model {request.model} is not served here; this group serves {model.name}")
    parameters, limits = request.parameters, model.limits
    bucket = model.bucket(parameters.width, parameters.height)
    if bucket is None:
        served = ", ".join(f"{b.width}x{b.height}" for b in model.buckets)
        raise InvalidRequest("width", f"{parameters.width}x{parameters.height} is not served; choose one of {served}")
    if parameters.max_sequence_length not in limits.max_sequence_lengths:
        _refuse_choice("max_sequence_length", parameters.max_sequence_length, limits.max_sequence_lengths)
    if limits.steps_served and parameters.steps not in limits.steps_served:
        _refuse_choice("steps", parameters.steps, limits.steps_served)
    _check_bounds("steps", parameters.steps, limits.steps.min, limits.steps.max)
    _check_bounds("guidance_scale", parameters.guidance_scale, limits.guidance_scale.min, limits.guidance_scale.max)
    _check_bounds("num_images", parameters.num_images, limits.num_images.min, limits.num_images.max)
    if len(parameters.seeds) != parameters.num_images:
        raise InvalidRequest("seeds", f"{parameters.num_images} images need as many seeds, not {len(parameters.seeds)}")
    for field, prompt in (("prompt", request.prompt), ("negative_prompt", parameters.negative_prompt)):
        size = len(prompt.encode())
        if size > limits.max_prompt_bytes:
            raise InvalidRequest(field, f"{field} has {size} bytes; send at most {limits.max_prompt_bytes}")
    return bucket


def not_warm(bucket: Bucket) -> Unavailable:
    """Return the error of a bucket that the group serves without, because its warm-up failed. Another may have it."""
    return Unavailable(
        f"{bucket.width}x{bucket.height} is not served by this group, whose warm-up of it failed; ask for another size",
        reason="BUCKET_NOT_WARM",
    )


def _refuse_choice(field: str, value: int, served: Sequence[int]) -> None:
    choices = ", ".join(map(str, served))
    raise InvalidRequest(field, f"{field} {value} is not served; choose one of {choices}")


def _check_bounds(field: str, value: float, minimum: float, maximum: float) -> None:
    """Refuse what is outside of the inclusive bounds; NaN is outside of any."""
    if not minimum <= value <= maximum:
        raise InvalidRequest(field, f"{field} {value} is out of bounds; choose {minimum} to {maximum}")
