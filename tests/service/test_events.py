"""Image chunks are told from other events by their first byte, and keep their bytes."""

from __future__ import annotations

import pytest

from pixelpod.v1 import images_pb2
from service.events import decode_unless_chunk, encode

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
