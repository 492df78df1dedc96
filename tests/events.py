"""Events of a group's answers, one by one."""

from __future__ import annotations

from collections.abc import Iterable

from pixelpod.server.events import encode, split
from pixelpod.v1 import group_pb2, images_pb2


def events_of(messages: Iterable[group_pb2.ExecuteEvents | bytes]) -> list[images_pb2.GenerateEvent]:
    """Return the events in the messages of an Execute call, decoded or not."""
    encoded = (each if isinstance(each, bytes) else each.SerializeToString() for each in messages)
    return [images_pb2.GenerateEvent.FromString(encode(event)) for message in encoded for event in split(message)]
