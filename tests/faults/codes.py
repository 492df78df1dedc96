"""Seeds that order a fault from ranks that have tests/faults in PYTHONPATH."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

_FIRST_SEED = 0xFA_0000_0000

FAULTY_ENVIRONMENT = {"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[2]}"}
"""For the processes of a group that obeys such seeds."""


class Fault(IntEnum):
    """What goes wrong, and on which ranks."""

    RANK_1_RAISES_IN_START = 1
    RANK_1_RAISES_IN_STEP = 2
    ALL_RAISE_IN_STEP = 3
    DECODE_RAISES = 4
    RANK_1_HANGS_IN_STEP = 5
    OUT_OF_MEMORY = 6

    @property
    def seed(self) -> int:
        """Of an image that makes it happen."""
        return _FIRST_SEED + self


def fault_of(seed: int) -> Fault | None:
    """Return the fault that a seed orders, if any."""
    number = seed - _FIRST_SEED
    return Fault(number) if 1 <= number <= len(Fault) else None
