"""Image sizes: which bucket serves a request, and which sizes are nearest to one that none serves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pixelpod.server.errors import InvalidRequest
from pixelpod.v1 import images_pb2

SIZES_NAMED = 3
"""How many of the nearest sizes a refusal names."""


def resolve_bucket(request: images_pb2.GenerateRequest, model: images_pb2.Model) -> images_pb2.Bucket:
    """Return the bucket that serves `request`: the default size's, the one asked for, or with NEAREST the nearest.

    Raises:
        InvalidRequest: if one side is missing or below 1, or if no bucket has the size.
    """
    width, height = _asked_size(request, model)
    for bucket in model.buckets:
        if (bucket.width, bucket.height) == (width, height):
            return bucket
    nearest = nearest_buckets(model.buckets, width, height)
    if request.size_policy != images_pb2.SIZE_POLICY_NEAREST:
        field = "height" if any(bucket.width == width for bucket in model.buckets) else "width"
        sizes = ", ".join(size_text(bucket.width, bucket.height) for bucket in nearest[:SIZES_NAMED])
        raise InvalidRequest(
            field,
            f"width x height {size_text(width, height)} is not served; the nearest sizes are {sizes}: "
            "ask for one of them, or set size_policy to NEAREST",
        )
    if width * height > model.limits.max_pixels:
        raise InvalidRequest(
            "width",
            f"width x height {size_text(width, height)} is over the limit of {model.limits.max_pixels} pixels, "
            "also for size_policy NEAREST: ask for a smaller size",
        )
    return nearest[0]


def nearest_buckets(buckets: Sequence[images_pb2.Bucket], width: int, height: int) -> list[images_pb2.Bucket]:
    """Return `buckets` by their distance from width x height pixels: aspect ratio first, then area."""

    def distance(bucket: images_pb2.Bucket) -> tuple[float, float]:
        shape = abs(math.log(bucket.width / bucket.height) - math.log(width / height))
        area = abs(math.log(bucket.width * bucket.height) - math.log(width * height))
        return shape, area

    return sorted(buckets, key=distance)


def size_text(width: int, height: int) -> str:
    """Return a size as people write it, width first: 1024x768."""
    return f"{width}x{height}"


def _asked_size(request: images_pb2.GenerateRequest, model: images_pb2.Model) -> tuple[int, int]:
    """Return the (width, height) in pixels that `request` asks for, bucket or not."""
    sides = {side: request.HasField(side) for side in ("width", "height")}
    if not any(sides.values()):
        return model.defaults.width, model.defaults.height
    for side, given in sides.items():
        if not given:
            raise InvalidRequest(side, f"{side} is missing: set both width and height, or neither")
        if getattr(request, side) < 1:
            raise InvalidRequest(side, f"{side} {getattr(request, side)} is below 1 pixel")
    return request.width, request.height
