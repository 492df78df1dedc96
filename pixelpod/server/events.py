"""Events on their way to a caller. Image chunks travel encoded: nobody on the way looks inside or copies them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TypeAlias

from pixelpod.v1 import images_pb2

CHUNK_BYTES = 1024 * 1024 - 1024
"""Of an image file in one event: the contract's 1 MiB holds the rest of the event too."""

Event: TypeAlias = images_pb2.GenerateEvent | bytes
"""A GenerateEvent; as `bytes`, an encoded one that holds an image chunk."""

Events: TypeAlias = AsyncGenerator[Event, None]

# Protobuf's wire format: a field is its tag (number << 3 | type), the length of its value, and the value.
_LENGTH_DELIMITED = 2
_CHUNK_TAG = bytes([images_pb2.GenerateEvent.IMAGE_CHUNK_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
_DATA_TAG = bytes([images_pb2.ImageChunk.DATA_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])


def encode_chunk(index: int, offset: int, data: memoryview) -> bytes:
    """Return an encoded GenerateEvent with an image chunk, for which `data` is copied once only.

    Args:
        index: Which image.
        offset: Where in its file the piece begins, in bytes.
        data: The piece.
    """
    head = images_pb2.ImageChunk(index=index, offset=offset).SerializeToString() + _DATA_TAG + _varint(len(data))
    return b"".join((_CHUNK_TAG, _varint(len(head) + len(data)), head, data))


def decode_unless_chunk(encoded: bytes) -> Event:
    """Return the event, or `encoded` itself if it is an image chunk."""
    return encoded if encoded.startswith(_CHUNK_TAG) else images_pb2.GenerateEvent.FromString(encoded)


def encode(event: Event) -> bytes:
    """Return the event's wire format, without a copy of image chunks."""
    return event if isinstance(event, bytes) else event.SerializeToString()


def _varint(number: int) -> bytes:
    """Return a number as the wire format writes it: 7 bits a byte, the lowest first, the last byte below 128."""
    encoded = bytearray()
    while number >= 128:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
