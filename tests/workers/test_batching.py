"""Batches of images of one key, whatever requests they come from."""

from __future__ import annotations

import pytest

from tests.workers.models import accept, make_model, make_request
from workers.batching import BatchKey, batch_sizes, make_batch
from workers.request import AcceptedRequest, RequestedImage


def images_of(*requests: AcceptedRequest) -> list[RequestedImage]:
    return [RequestedImage(request, index) for request in requests for index in range(request.images)]


@pytest.mark.parametrize(
    ("images", "sizes"), [(0, []), (1, [1]), (2, [2]), (3, [4]), (4, [4]), (5, [4, 1]), (7, [4, 4]), (8, [4, 4])]
)
def test_images_make_full_batches_and_a_padded_rest(images: int, sizes: list[int]) -> None:
    bucket = make_model().bucket(64, 64)
    assert bucket is not None
    assert batch_sizes(images, bucket) == sizes


async def test_a_batch_holds_images_of_several_requests() -> None:
    one, two = accept(make_request("one", seeds=[5, 6])), accept(make_request("two", seeds=[5]))
    batch = make_batch(images_of(one, two))
    assert [(slot.prompt, slot.seed) for slot in batch.slots] == [("one", 5), ("one", 6), ("two", 5)]
    assert batch.batch_size == 4


async def test_a_batch_says_everything() -> None:
    request = make_request(
        prompt="ß", width=128, steps=7, guidance_scale=1.5, max_sequence_length=256, seeds=[0], negative_prompt=""
    )
    batch = make_batch(images_of(accept(request)))
    assert (batch.width, batch.height, batch.batch_size, batch.steps) == (128, 64, 2, 7)
    assert (batch.guidance_scale, batch.max_sequence_length) == (1.5, 256)
    (slot,) = batch.slots
    assert (slot.prompt, slot.seed, slot.negative_prompt) == ("ß", 0, "")
    assert slot.HasField("negative_prompt")


async def test_without_a_negative_prompt_none_is_sent() -> None:
    assert not make_batch(images_of(accept())).slots[0].HasField("negative_prompt")


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 128},
        {"steps": 9},
        {"guidance_scale": 4.5},
        {"max_sequence_length": 256},
        {"negative_prompt": ""},
    ],
)
def test_what_keeps_images_apart(changes: dict[str, object]) -> None:
    model, request, changed = make_model(), make_request(), make_request(**changes)
    bucket = model.bucket(changed.parameters.width, 64)
    assert bucket is not None
    assert BatchKey.of(changed, bucket) != BatchKey.of(request, model.buckets[0])


def test_what_does_not_keep_images_apart() -> None:
    bucket = make_model().buckets[0]
    other = make_request("another prompt", seeds=[1, 2], output_format=2, quality=50)
    assert BatchKey.of(other, bucket) == BatchKey.of(make_request(), bucket)
