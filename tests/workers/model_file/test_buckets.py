"""The buckets of a model, and the batch sizes of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.model_file.files import MINIMAL, loaded, written
from tests.workers.models import make_model
from workers.model_file import load_model_file


def test_bucket_is_found_by_its_size(tmp_path: Path) -> None:
    model = load_model_file(written(tmp_path, MINIMAL))
    assert model.bucket(1024, 768) is model.buckets[0]
    assert model.bucket(768, 1024) is None


@pytest.mark.parametrize(("images", "padded"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 4)])
def test_images_are_padded_to_the_next_batch_size(tmp_path: Path, images: int, padded: int) -> None:
    bucket = loaded(tmp_path, "buckets.0.batch_sizes", [1, 2, 4]).buckets[0]
    assert bucket.padded_batch_size(images) == padded


def test_deterministic_leaves_each_bucket_its_largest_batch() -> None:
    model = make_model(deterministic=True)
    assert [bucket.batch_sizes for bucket in model.buckets] == [(4,), (2,)]
    assert [bucket.batch_sizes for bucket in make_model().buckets] == [(1, 2, 4), (2,)]
