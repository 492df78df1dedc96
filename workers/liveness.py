"""Signs of life of a host's ranks, in a small file that they and their launcher have mapped into memory.

A file and not a socket: it costs nothing to write, needs no thread to answer, and outlives every rank.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

LIVENESS_FILE_VARIABLE = "PIXELPOD_LIVENESS_FILE"
"""The environment variable in which a launcher tells its ranks where the file is."""


class RankState(IntEnum):
    """Where a rank is in its life."""

    LOADING = 0
    """Weights load, buckets compile."""
    SERVING = 1
    STALLED = 2
    """It ends because its batch made no progress."""
    LEFT = 3
    """It ends in order."""


class RestartReason(IntEnum):
    """Why a world was started again."""

    RANK_LOST = 0
    """A rank failed or was killed."""
    RANK_SILENT = 1
    """A rank gave no sign of life."""
    STALLED = 2
    """A batch made no progress."""
    NOT_READY = 3
    """A rank failed before the group was ready."""


class Sign(NamedTuple):
    """What a rank shows of itself."""

    pid: int
    beats: int
    state: RankState


_RESTARTS = struct.Struct(f"<{len(RestartReason)}Q")
_SIGN = struct.Struct("<QQQ")


class LivenessFile:
    """The file: counts of restarts by reason, then a sign for each rank of the host.

    Each number has one writer, so that none needs a lock: the launcher counts restarts, each rank writes its own sign.
    """

    def __init__(self, path: Path) -> None:
        """Map a file that `create` made."""
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.ranks = (len(self._map) - _RESTARTS.size) // _SIGN.size

    @classmethod
    def create(cls, path: Path, ranks: int) -> LivenessFile:
        """Make the file for so many ranks of this host."""
        path.write_bytes(bytes(_RESTARTS.size + ranks * _SIGN.size))
        return cls(path)

    def sign(self, local_rank: int) -> Sign:
        """Return what the rank of this number on the host shows; pid 0 before its process is there."""
        pid, beats, state = _SIGN.unpack_from(self._map, self._place(local_rank))
        return Sign(pid, beats, RankState(state))

    def write(self, local_rank: int, sign: Sign) -> None:
        """Show this. Only the rank itself calls it."""
        _SIGN.pack_into(self._map, self._place(local_rank), *sign)

    def restarts(self) -> dict[RestartReason, int]:
        """Return how often the world was started again, by reason."""
        return dict(zip(RestartReason, _RESTARTS.unpack_from(self._map), strict=True))

    def count_restart(self, reason: RestartReason) -> None:
        """Count one. Only the launcher calls it."""
        counts = self.restarts()
        counts[reason] += 1
        _RESTARTS.pack_into(self._map, 0, *counts.values())

    def _place(self, local_rank: int) -> int:
        return _RESTARTS.size + local_rank * _SIGN.size


class Pulse:
    """A rank's signs of life, from a thread of its own: they stop when the process does, not when it computes.

    Args:
        file: Where the launcher looks.
        local_rank: The rank's number on this host.
        interval_seconds: Between two signs.
    """

    def __init__(self, file: LivenessFile, local_rank: int, interval_seconds: float) -> None:
        self.file = file
        self._local_rank = local_rank
        self._interval_seconds = interval_seconds
        self._beats = 0
        self._state = RankState.LOADING
        self._lock = threading.Lock()
        self._beat()
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def enter(self, state: RankState) -> None:
        """Show this state from now on."""
        with self._lock:
            self._state = state
        self._beat()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._interval_seconds):
            self._beat()

    def _beat(self) -> None:
        with self._lock:
            self._beats += 1
            self.file.write(self._local_rank, Sign(os.getpid(), self._beats, self._state))
