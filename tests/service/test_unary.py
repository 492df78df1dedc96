"""The unary answer holds all images or says how large it would be."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from pixelpod.server.errors import AnswerTooLarge
from pixelpod.server.events import Event
from pixelpod.v1 import images_pb2
from service.unary import collect

IMAGES = [b"a" * 1000, b"b" * 500]


async def answer() -> AsyncGenerator[Event, None]:
    yield images_pb2.GenerateEvent(accepted=images_pb2.Accepted())
    for index, data in enumerate(IMAGES):
        for offset in range(0, len(data), 300):
            chunk = images_pb2.ImageChunk(index=index, offset=offset, data=data[offset : offset + 300])
            yield memoryview(images_pb2.GenerateEvent(image_chunk=chunk).SerializeToString())
    images = [images_pb2.Image(index=index, size_bytes=len(data)) for index, data in enumerate(IMAGES)]
    yield images_pb2.GenerateEvent(done=images_pb2.GenerateResponse(request_id="r", images=images))


async def test_images_are_put_together() -> None:
    response = images_pb2.GenerateResponse.FromString(await collect(answer(), 10_000))
    assert response.request_id == "r"
    assert [image.data for image in response.images] == IMAGES
    assert [(image.index, image.size_bytes) for image in response.images] == [(0, 1000), (1, 500)]


async def test_limit_counts_the_whole_message() -> None:
    size = len(await collect(answer(), 10_000))
    assert size > 1500
    assert len(await collect(answer(), size)) == size
    with pytest.raises(AnswerTooLarge, match=f"has {size} bytes, over the limit of {size - 1}.*GenerateStream"):
        await collect(answer(), size - 1)


async def test_images_over_the_limit_are_counted_to_the_end() -> None:
    with pytest.raises(AnswerTooLarge, match="has 1500 bytes, over the limit of 700") as refused:
        await collect(answer(), 700)
    assert refused.value.reason == "UNARY_RESPONSE_TOO_LARGE"
