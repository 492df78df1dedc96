"""Events travel together, image chunks encoded; what comes out is what went in."""

from __future__ import annotations

import os

import pytest
from google.protobuf.message import Message

from pixelpod.server.events import (
    CHUNK_BYTES,
    MESSAGE_BYTES,
    Chunk,
    decode_chunk,
    encode,
    encode_chunk,
    join,
    size_bytes,
    split,
)
from pixelpod.v1 import group_pb2, images_pb2

CHUNK = images_pb2.ImageChunk(index=1, offset=7, data=b"x" * 1000)
PROGRESS = images_pb2.Progress(step=1, steps=2, seconds_left=0.5)
DONE = images_pb2.GenerateResponse(request_id="a")


@pytest.mark.parametrize("fields", [{"progress": PROGRESS}, {"done": DONE}], ids=lambda fields: next(iter(fields)))
def test_one_event_is_encoded_as_a_generate_event(fields: dict[str, Message]) -> None:
    event = images_pb2.GenerateEvent(**fields)
    (message,) = join([group_pb2.ExecuteEvents(**fields)])
    assert message == event.SerializeToString()
    (decoded,) = split(message)
    assert decoded == event
    assert encode(decoded) == message
    assert size_bytes(decoded) == len(message)


def test_a_chunk_by_itself_passes_untouched() -> None:
    message = images_pb2.GenerateEvent(image_chunk=CHUNK).SerializeToString()
    (event,) = split(message)
    assert encode(event) is message
    assert size_bytes(event) == len(message)


def test_events_together_come_apart_in_order() -> None:
    together = group_pb2.ExecuteEvents(progress=PROGRESS, image_chunk=[CHUNK, CHUNK], done=DONE)
    events = list(split(together.SerializeToString()))
    assert [images_pb2.GenerateEvent.FromString(encode(event)) for event in events] == [
        images_pb2.GenerateEvent(progress=PROGRESS),
        images_pb2.GenerateEvent(image_chunk=CHUNK),
        images_pb2.GenerateEvent(image_chunk=CHUNK),
        images_pb2.GenerateEvent(done=DONE),
    ]


@pytest.mark.parametrize("size", [1, 127, 128, 16_384, CHUNK_BYTES])
@pytest.mark.parametrize(("index", "offset"), [(0, 0), (0, CHUNK_BYTES), (3, 2**33)])
def test_a_chunk_is_encoded_as_protobuf_would(size: int, index: int, offset: int) -> None:
    data = os.urandom(size)
    encoded = b"".join(encode_chunk(Chunk(index, offset, memoryview(data))))
    chunk = images_pb2.ImageChunk(index=index, offset=offset, data=data)
    assert encoded == images_pb2.GenerateEvent(image_chunk=chunk).SerializeToString()
    assert decode_chunk(memoryview(encoded)) == Chunk(index, offset, memoryview(data))
    assert len(encoded) < 1024 * 1024


def test_messages_are_bounded_and_nothing_is_lost() -> None:
    file = memoryview(os.urandom(5 * CHUNK_BYTES))
    chunks = [Chunk(0, offset, file[offset : offset + CHUNK_BYTES]) for offset in range(0, len(file), CHUNK_BYTES)]
    done = group_pb2.ExecuteEvents(done=DONE)
    messages = list(join([group_pb2.ExecuteEvents(progress=PROGRESS), *chunks, done]))
    assert max(map(len, messages)) <= MESSAGE_BYTES
    assert len(messages) < len(chunks) + 2
    events = [event for message in messages for event in split(message)]
    received = [decode_chunk(event) for event in events if isinstance(event, memoryview)]
    assert received == chunks
    assert events[-1] == images_pb2.GenerateEvent(done=DONE)
