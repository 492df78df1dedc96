"""What a group's measured batch times say of a request."""

from __future__ import annotations

import pytest

from pixelpod.v1 import group_pb2, images_pb2
from service.durations import Durations
from tests.service.stub_group import measured, tiny_model


def durations(*batches: group_pb2.BatchSeconds) -> Durations:
    return Durations(group_pb2.GroupStatus(model=tiny_model(), batch_seconds=batches))


def asked(num_images: int = 1, steps: int = 4, width: int = 64) -> images_pb2.ResolvedParameters:
    return images_pb2.ResolvedParameters(width=width, height=64, num_images=num_images, steps=steps)


def test_nothing_is_known_before_anything_was_measured() -> None:
    unknown = durations()
    assert [unknown.own_seconds(asked()), unknown.full_seconds(asked()), unknown.share_seconds(asked())] == [0, 0, 0]


def test_batches_of_one_two_and_four() -> None:
    known = durations(*measured(1.0, 0.5, 1), *measured(2.0, 0.5, 2), *measured(2.0, 1.0, 4))
    assert known.own_seconds(asked()) == 3.0
    assert known.own_seconds(asked(num_images=2, steps=10)) == 7.0
    assert known.own_seconds(asked(num_images=3)) == 6.0, "padded to four"
    assert known.own_seconds(asked(num_images=5)) == 9.0, "one of four, one of one"
    assert [known.full_seconds(asked(images)) for images in (1, 4, 5)] == [6.0, 6.0, 12.0]
    assert [known.share_seconds(asked(images)) for images in (1, 4, 6)] == [1.5, 6.0, 9.0]


def test_what_was_not_measured_is_taken_as_proportional_to_the_nearest_size() -> None:
    known = durations(*measured(1.0, 0.5, 2))
    assert known.own_seconds(asked()) == 1.5
    assert known.share_seconds(asked(num_images=4)) == 6.0


def test_only_warm_buckets() -> None:
    model = tiny_model()
    model.buckets[0].warm = False
    known = Durations(group_pb2.GroupStatus(model=model))
    assert [known.warm(size) for size in ((64, 64), (96, 64), (100, 64))] == [False, True, False]


@pytest.mark.parametrize("steps", [1, 50])
def test_steps_count(steps: int) -> None:
    assert durations(*measured(1.0, 0.5)).own_seconds(asked(steps=steps)) == 1 + 0.5 * steps
