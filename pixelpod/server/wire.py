"""Just enough of protobuf's wire format to move image bytes without copying them.

A field is its tag (number << 3 | type) and its value; a value of type 2 is a length and so many bytes. Numbers are
varints: 7 bits a byte, the lowest first, the last byte below 128. https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Sequence

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


def read_fields(message: memoryview) -> dict[int, int | memoryview]:
    """Return the fields of a message by number: those that are numbers, and those that have a length.

    Raises:
        ValueError: if there is a field of another type.
    """
    fields: dict[int, int | memoryview] = {}
    at = 0
    while at < len(message):
        head, at = _read_varint(message, at)
        value, at = _read_varint(message, at)
        if head & 7 == _LENGTH_DELIMITED:
            fields[head >> 3] = message[at : at + value]
            at += value
        elif head & 7 == _VARINT:
            fields[head >> 3] = value
        else:
            raise ValueError(f"field {head >> 3} has wire type {head & 7}")
    return fields


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and the place behind it."""
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
