"""What a group is to a frontend: whether it is there, and how far it is."""

from __future__ import annotations

from enum import StrEnum

from pixelpod.v1 import group_pb2


class Availability(StrEnum):
    """What a group is to this frontend."""

    GONE = "gone"
    """No status stream: not started, unreachable, dead, or silent for too long."""
    INCOMPATIBLE = "incompatible"
    """It speaks another version of the contract."""
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"


_AVAILABILITIES = {
    group_pb2.GROUP_STATE_LOADING: Availability.LOADING,
    group_pb2.GROUP_STATE_WARMING: Availability.WARMING,
    group_pb2.GROUP_STATE_READY: Availability.READY,
    group_pb2.GROUP_STATE_DRAINING: Availability.DRAINING,
}


def availability_of(state: group_pb2.GroupState.ValueType) -> Availability:
    """Return what a group in this state is; of a state that is not known here, gone."""
    return _AVAILABILITIES.get(state, Availability.GONE)
