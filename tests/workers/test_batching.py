from __future__ import annotations

import pytest

from pixelpod.v1 import images_pb2
from tests.workers.models import make_model, make_request
from workers.batching import predict_seconds, split_into_batches


@pytest.mark.parametrize(
    ("images", "slots", "batch_sizes"),
    [(1, [1], [1]), (3, [3], [4]), (4, [4], [4]), (5, [4, 1], [4, 1]), (7, [4, 3], [4, 4])],
)
def test_images_are_split_and_padded(images: int, slots: list[int], batch_sizes: list[int]) -> None:
    model, request = make_model(), make_request(seeds=list(range(images)))
    batches = split_into_batches(request, model.bucket(64, 64))
    assert [len(batch.slots) for batch in batches] == slots
    assert [batch.batch_size for batch in batches] == batch_sizes
    assert [slot.seed for batch in batches for slot in batch.slots] == list(range(images))


def test_a_batch_says_everything() -> None:
    request = make_request(
        prompt="ß", width=128, steps=7, guidance_scale=1.5, max_sequence_length=256, seeds=[0], negative_prompt=""
    )
    (batch,) = split_into_batches(request, make_model().bucket(128, 64))
    assert (batch.width, batch.height, batch.batch_size, batch.steps) == (128, 64, 2, 7)
    assert (batch.guidance_scale, batch.max_sequence_length) == (1.5, 256)
    (slot,) = batch.slots
    assert (slot.prompt, slot.seed, slot.negative_prompt) == ("ß", 0, "")
    assert slot.HasField("negative_prompt")


def test_without_a_negative_prompt_none_is_sent() -> None:
    (batch,) = split_into_batches(make_request(), make_model().bucket(64, 64))
    assert not batch.slots[0].HasField("negative_prompt")


def test_prediction_extrapolates_steps_and_batch_size() -> None:
    measured = images_pb2.Bucket(batch_sizes=[1, 2, 4], measured_seconds=3.0, step_seconds=0.25)
    bucket = make_model().bucket(64, 64)
    one, five = make_request(steps=20), make_request(steps=20, seeds=[1, 2, 3, 4, 5])
    # 10 default steps took 2.5 s of the 3, so 0.5 s lie beside the steps.
    assert predict_seconds(split_into_batches(one, bucket), measured, 10) == pytest.approx(5.5)
    assert predict_seconds(split_into_batches(five, bucket), measured, 10) == pytest.approx(5.5 * 4 + 5.5)
    assert predict_seconds(split_into_batches(one, bucket), images_pb2.Bucket(batch_sizes=[1]), 10) == 0
