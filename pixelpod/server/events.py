"""Events on their way to a caller. Image chunks travel encoded: nobody on the way looks inside or copies them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from pixelpod.server.wire import Part, field, read_fields
from pixelpod.v1 import group_pb2, images_pb2

CHUNK_BYTES = 1024 * 1024 - 1024
"""Of an image file in one event: the contract's 1 MiB holds the rest of the event too."""

MESSAGE_BYTES = 2 * CHUNK_BYTES
"""Of events that travel together: well below gRPC's own limit of 4 MiB."""

Event: TypeAlias = images_pb2.GenerateEvent | memoryview
"""A GenerateEvent; as a view, an encoded one that holds an image chunk."""

Events: TypeAlias = AsyncGenerator[Event, None]

_CHUNK = images_pb2.GenerateEvent.IMAGE_CHUNK_FIELD_NUMBER


@dataclass(frozen=True)
class Chunk:
    """A piece of an image file."""

    index: int
    """Which image."""
    offset: int
    """Where in the file the piece begins, in bytes."""
    data: memoryview


def encode_chunk(chunk: Chunk) -> list[Part]:
    """Return the parts of an encoded GenerateEvent with an image chunk, without copying its data."""
    head = images_pb2.ImageChunk(index=chunk.index, offset=chunk.offset).SerializeToString()
    return field(_CHUNK, [head, *field(images_pb2.ImageChunk.DATA_FIELD_NUMBER, [chunk.data])])


def decode_chunk(encoded: memoryview) -> Chunk:
    """Return the chunk in an encoded GenerateEvent, with a view of its data instead of a copy."""
    (event,) = read_fields(encoded)
    assert isinstance(event.value, memoryview)
    fields: dict[int, Any] = {each.number: each.value for each in read_fields(event.value)}
    return Chunk(
        index=fields.get(images_pb2.ImageChunk.INDEX_FIELD_NUMBER, 0),
        offset=fields.get(images_pb2.ImageChunk.OFFSET_FIELD_NUMBER, 0),
        data=fields[images_pb2.ImageChunk.DATA_FIELD_NUMBER],
    )


def join(events: Iterable[group_pb2.ExecuteEvents | Chunk]) -> Iterator[bytes]:
    """Yield encoded ExecuteEvents that hold all `events`, in their order; image data is copied once.

    No message is larger than MESSAGE_BYTES, unless one event by itself is.
    """
    parts: list[Part] = []
    size_bytes = 0
    for event in events:
        encoded = encode_chunk(event) if isinstance(event, Chunk) else [event.SerializeToString()]
        event_bytes = sum(map(len, encoded))
        if parts and size_bytes + event_bytes > MESSAGE_BYTES:
            yield b"".join(parts)
            parts, size_bytes = [], 0
        parts += encoded
        size_bytes += event_bytes
    if parts:
        yield b"".join(parts)


def split(message: bytes) -> Iterator[Event]:
    """Yield the events of an encoded ExecuteEvents."""
    for each in read_fields(memoryview(message)):
        if each.number == _CHUNK:
            yield each.encoded
        else:
            yield images_pb2.GenerateEvent.FromString(bytes(each.encoded))


def encode(event: Event) -> bytes:
    """Return the event's wire format. An image chunk is copied only if it came together with other events."""
    if not isinstance(event, memoryview):
        return event.SerializeToString()
    message = event.obj
    return message if isinstance(message, bytes) and len(message) == len(event) else bytes(event)


def size_bytes(event: Event) -> int:
    """Return the event's size on the wire."""
    return len(event) if isinstance(event, memoryview) else event.ByteSize()
