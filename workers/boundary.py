"""The boundary after each stage and step of a batch, where all ranks hear from rank 0 whether to go on.

Every rank says how its part went; rank 0 alone decides (law 1). A failure that all ranks meet alike ends the batch.
One that only some ranks meet leaves them in different states, so it ends the world.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

from pixelpod.v1 import group_pb2
from workers.control import ControlChannel, WorldBroken

SUCCEEDED = 0
"""Outcome of a rank whose part went well."""
NO_PART = -1
"""Outcome of a rank that had nothing to do in this stage."""
PATIENCE_SECONDS = 3.0
"""How long a rank that failed waits at the boundary. Ranks that fail alike are there about at once; one that failed by
itself may have left the others waiting for it in a collective within the stage, for good."""


def outcome_of(error: Exception | None) -> int:
    """Return the outcome of a rank's part: `SUCCEEDED`, or a positive number that tells the kind of error."""
    return SUCCEEDED if error is None else 1 + zlib.crc32(type(error).__qualname__.encode())


def _patience_seconds(outcome: int) -> float | None:
    return None if outcome in (SUCCEEDED, NO_PART) else PATIENCE_SECONDS


def decide(outcomes: Sequence[int], wanted: bool) -> group_pb2.Verdict.ValueType:
    """Return rank 0's verdict on a batch.

    Args:
        outcomes: Of all ranks, in their order.
        wanted: Whether anybody still waits for the batch.

    Raises:
        WorldBroken: if ranks that had a part in the stage fared differently.
    """
    took_part = {rank: outcome for rank, outcome in enumerate(outcomes) if outcome != NO_PART}
    if len(set(took_part.values())) > 1:
        failed = [rank for rank, outcome in took_part.items() if outcome != SUCCEEDED]
        raise WorldBroken(f"ranks {failed} of {len(outcomes)} failed by themselves; their logs say how")
    if wanted and set(took_part.values()) == {SUCCEEDED}:
        return group_pb2.VERDICT_CONTINUE
    return group_pb2.VERDICT_ABORT


class Boundary(Protocol):
    """Where ranks agree."""

    def agree(self, outcome: int) -> group_pb2.Verdict.ValueType:
        """Tell rank 0 how this rank's part went, and return rank 0's verdict.

        Raises:
            WorldBroken: if a rank is gone, or ranks fared differently.
        """


class LeaderBoundary:
    """Rank 0's side: it decides.

    Args:
        channel: To the other ranks.
        wanted: Tells whether anybody still waits for the batch.
    """

    def __init__(self, channel: ControlChannel, wanted: Callable[[], bool]) -> None:
        self._channel = channel
        self._wanted = wanted

    def agree(self, outcome: int) -> group_pb2.Verdict.ValueType:
        """See `Boundary`."""
        outcomes = self._channel.gather(outcome, _patience_seconds(outcome))
        try:
            verdict = decide(outcomes, self._wanted())
        except WorldBroken:
            # The others wait for a word: a shutdown within a batch tells them that their world ended.
            self._channel.send(group_pb2.Command(shutdown=group_pb2.Shutdown()))
            raise
        self._channel.send(group_pb2.Command(decision=group_pb2.Decision(verdict=verdict)))
        return verdict


class FollowerBoundary:
    """The side of the ranks after 0: they obey."""

    def __init__(self, channel: ControlChannel) -> None:
        self._channel = channel

    def agree(self, outcome: int) -> group_pb2.Verdict.ValueType:
        """See `Boundary`."""
        patience_seconds = _patience_seconds(outcome)
        self._channel.gather(outcome, patience_seconds)
        command = self._channel.receive(patience_seconds)
        if not command.HasField("decision"):
            raise WorldBroken(f"rank 0 sent {command.WhichOneof('command')} within a batch")
        return command.decision.verdict
