"""Image chunks are told from other events by their first byte, and keep their bytes."""

from __future__ import annotations

import os

import pytest

from pixelpod.server.events import CHUNK_BYTES, Chunk, decode_chunk, decode_unless_chunk, encode, encode_chunk
from pixelpod.v1 import images_pb2

CHUNK = images_pb2.GenerateEvent(image_chunk=images_pb2.ImageChunk(index=1, offset=7, data=b"x" * 1000))
OTHERS = [
    images_pb2.GenerateEvent(accepted=images_pb2.Accepted(request_id="a")),
    images_pb2.GenerateEvent(progress=images_pb2.Progress(step=1, steps=2)),
    images_pb2.GenerateEvent(done=images_pb2.GenerateResponse(request_id="a")),
]


def test_chunk_passes_untouched() -> None:
    encoded = CHUNK.SerializeToString()
    event = decode_unless_chunk(encoded)
    assert event is encoded
    assert encode(event) is encoded


@pytest.mark.parametrize("event", OTHERS, ids=lambda event: event.WhichOneof("event"))
def test_other_events_are_decoded(event: images_pb2.GenerateEvent) -> None:
    decoded = decode_unless_chunk(event.SerializeToString())
    assert decoded == event
    assert encode(decoded) == event.SerializeToString()


@pytest.mark.parametrize("size", [1, 127, 128, 16_384, CHUNK_BYTES])
@pytest.mark.parametrize(("index", "offset"), [(0, 0), (0, CHUNK_BYTES), (3, 2**33)])
def test_a_chunk_is_encoded_as_protobuf_would(size: int, index: int, offset: int) -> None:
    data = os.urandom(size)
    encoded = encode_chunk(Chunk(index, offset, memoryview(data)))
    chunk = images_pb2.ImageChunk(index=index, offset=offset, data=data)
    assert images_pb2.GenerateEvent.FromString(encoded) == images_pb2.GenerateEvent(image_chunk=chunk)
    assert encoded == images_pb2.GenerateEvent(image_chunk=chunk).SerializeToString()
    assert decode_unless_chunk(encoded) is encoded
    assert decode_chunk(encoded) == Chunk(index, offset, memoryview(data))
    assert len(encoded) < 1024 * 1024
