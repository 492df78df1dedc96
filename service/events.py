"""Events on their way to a caller. Image chunks stay as the group encoded them: nobody here looks inside."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TypeAlias

from pixelpod.v1 import images_pb2

Event: TypeAlias = images_pb2.GenerateEvent | bytes
"""A GenerateEvent; as `bytes`, an encoded one that holds an image chunk."""

Events: TypeAlias = AsyncGenerator[Event, None]

_LENGTH_DELIMITED = 2
_CHUNK_TAG = bytes([images_pb2.GenerateEvent.IMAGE_CHUNK_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
"""How an encoded GenerateEvent begins whose field is image_chunk (protobuf's wire format: number << 3 | type)."""


def decode_unless_chunk(encoded: bytes) -> Event:
    """Return the event, or `encoded` itself if it is an image chunk."""
    return encoded if encoded.startswith(_CHUNK_TAG) else images_pb2.GenerateEvent.FromString(encoded)


def encode(event: Event) -> bytes:
    """Return the event's wire format, without a copy of image chunks."""
    return event if isinstance(event, bytes) else event.SerializeToString()
