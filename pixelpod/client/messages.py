"""Between protobuf messages and the client's plain types."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from google.protobuf.message import Message

T = TypeVar("T")


def from_message(kind: type[T], message: Message, /, **converted: object) -> T:
    """Return a dataclass `kind` filled from the message's fields of the same names.

    Args:
        kind: The dataclass.
        message: Where the values come from.
        converted: Values of the fields that are not taken as they are.
    """
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # T has no bound for this
    return kind(**{name: converted[name] if name in converted else getattr(message, name) for name in names})


def enum_names(message: Message, field: str) -> dict[int, str]:
    """Return the values of a message's enum field with their names; empty when the field is no enum.

    The enum's own name in front is left out: PRIORITY_LOW is "LOW".
    """
    enum = message.DESCRIPTOR.fields_by_name[field].enum_type
    if enum is None:
        return {}
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {value.number: value.name.removeprefix(prefix) for value in enum.values}


def enum_name(message: Message, field: str) -> str:
    """Return the name of an enum field's value, or its number where a newer server sent one unknown here."""
    number: int = getattr(message, field)
    return enum_names(message, field).get(number, str(number))
