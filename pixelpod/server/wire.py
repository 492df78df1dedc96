"""Just enough of protobuf's wire format to move image bytes without copying them.

A field is its tag (number << 3 | type) and its value; a value of type 2 is a length and so many bytes. Numbers are
varints: 7 bits a byte, the lowest first, the last byte below 128. https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

Part = bytes | memoryview

_VARINT, _LENGTH_DELIMITED = 0, 2


def tag(number: int) -> bytes:
    """Return how a field of this number, below 16, begins whose value has a length."""
    return bytes([number << 3 | _LENGTH_DELIMITED])


def field(number: int, value: Sequence[Part]) -> list[Part]:
    """Return the parts of a field whose value is the parts of `value`."""
    return [tag(number) + varint(sum(map(len, value))), *value]


def varint(number: int) -> bytes:
    """Return an encoded number."""
    encoded = bytearray()
    while number >= 128:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class Field(NamedTuple):
    """One field of a message."""

    number: int
    value: int | memoryview
    """What it says: a number, or so many bytes."""
    encoded: memoryview
    """The whole field, with its tag: by itself a message that has only this field."""


def read_fields(message: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in the order on the wire. They are views into it.

    Raises:
        ValueError: if there is a field that is neither a number nor has a length.
    """
    at = 0
    while at < len(message):
        begin = at
        head, at = _read_varint(message, at)
        number, at = _read_varint(message, at)
        if head & 7 == _LENGTH_DELIMITED:
            begin_value, at = at, at + number
            yield Field(head >> 3, message[begin_value:at], message[begin:at])
        elif head & 7 == _VARINT:
            yield Field(head >> 3, number, message[begin:at])
        else:
            raise ValueError(f"field {head >> 3} has wire type {head & 7}")


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and the place behind it."""
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
