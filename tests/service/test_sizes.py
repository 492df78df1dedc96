"""Sizes: buckets are served exactly; NEAREST goes by aspect ratio, then by area."""

from __future__ import annotations

import pytest

from pixelpod.v1 import images_pb2
from service.sizes import nearest_buckets, resolve_bucket
from tests.service.stub_group import tiny_model

BUCKETS = [
    images_pb2.Bucket(width=width, height=height)
    for width, height in ((1024, 1024), (512, 512), (1344, 768), (768, 1344), (672, 384))
]


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ((1000, 1000), [(1024, 1024), (512, 512)]),
        ((600, 600), [(512, 512), (1024, 1024)]),
        ((1920, 1080), [(1344, 768), (672, 384)]),
        ((640, 360), [(672, 384), (1344, 768)]),
        ((1080, 1920), [(768, 1344)]),
        ((100_000, 10_000), [(1344, 768)]),
        ((1, 2**31 - 1), [(768, 1344)]),
    ],
)
def test_nearest_by_aspect_ratio_then_area(asked: tuple[int, int], nearest: list[tuple[int, int]]) -> None:
    order = [(bucket.width, bucket.height) for bucket in nearest_buckets(BUCKETS, *asked)]
    assert order[: len(nearest)] == nearest
    assert len(order) == len(BUCKETS)


def test_default_size() -> None:
    bucket = resolve_bucket(images_pb2.GenerateRequest(), tiny_model())
    assert (bucket.width, bucket.height) == (64, 64)


def test_exact_size() -> None:
    bucket = resolve_bucket(images_pb2.GenerateRequest(width=96, height=64), tiny_model())
    assert (bucket.width, bucket.height) == (96, 64)


def test_nearest_size() -> None:
    request = images_pb2.GenerateRequest(width=190, height=120, size_policy=images_pb2.SIZE_POLICY_NEAREST)
    bucket = resolve_bucket(request, tiny_model())
    assert (bucket.width, bucket.height) == (96, 64)
