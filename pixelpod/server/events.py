"""Events on their way to a caller. Image chunks travel encoded: nobody on the way looks inside or copies them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, TypeAlias

from pixelpod.server.wire import field, read_fields, tag
from pixelpod.v1 import images_pb2

CHUNK_BYTES = 1024 * 1024 - 1024
"""Of an image file in one event: the contract's 1 MiB holds the rest of the event too."""

Event: TypeAlias = images_pb2.GenerateEvent | bytes
"""A GenerateEvent; as `bytes`, an encoded one that holds an image chunk."""

Events: TypeAlias = AsyncGenerator[Event, None]

_CHUNK = images_pb2.GenerateEvent.IMAGE_CHUNK_FIELD_NUMBER
_CHUNK_TAG = tag(_CHUNK)


@dataclass(frozen=True)
class Chunk:
    """A piece of an image file."""

    index: int
    """Which image."""
    offset: int
    """Where in the file the piece begins, in bytes."""
    data: memoryview


def encode_chunk(chunk: Chunk) -> bytes:
    """Return an encoded GenerateEvent with an image chunk, for which its data is copied once only."""
    head = images_pb2.ImageChunk(index=chunk.index, offset=chunk.offset).SerializeToString()
    return b"".join(field(_CHUNK, [head, *field(images_pb2.ImageChunk.DATA_FIELD_NUMBER, [chunk.data])]))


def decode_chunk(encoded: bytes) -> Chunk:
    """Return the chunk in an encoded GenerateEvent, with a view of its data instead of a copy."""
    chunk = read_fields(memoryview(encoded))[_CHUNK]
    assert isinstance(chunk, memoryview)
    fields: dict[int, Any] = read_fields(chunk)
    return Chunk(
        index=fields.get(images_pb2.ImageChunk.INDEX_FIELD_NUMBER, 0),
        offset=fields.get(images_pb2.ImageChunk.OFFSET_FIELD_NUMBER, 0),
        data=fields[images_pb2.ImageChunk.DATA_FIELD_NUMBER],
    )


def decode_unless_chunk(encoded: bytes) -> Event:
    """Return the event, or `encoded` itself if it is an image chunk."""
    return encoded if encoded.startswith(_CHUNK_TAG) else images_pb2.GenerateEvent.FromString(encoded)


def encode(event: Event) -> bytes:
    """Return the event's wire format, without a copy of image chunks."""
    return event if isinstance(event, bytes) else event.SerializeToString()
