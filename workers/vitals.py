"""Whether every rank of this host shows signs of life, for the liveness probe.

The launcher looks at the same signs and kills a silent rank: the probe finds something only where the launcher failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from workers.liveness import LivenessFile, RankState, Sign


class Vitals:
    """Looks at the signs of life of a host's ranks.

    Args:
        file: What the ranks write.
        timeout_seconds: Longest time without a sign while serving.
        loading_timeout_seconds: The same before.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        file: LivenessFile,
        timeout_seconds: float,
        loading_timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._timeout_seconds = timeout_seconds
        self._loading_timeout_seconds = loading_timeout_seconds
        self._clock = clock
        self._seen: dict[int, tuple[Sign, float]] = {}
        """The last sign of each rank of the host, and when it was new."""

    def good(self) -> bool:
        """Look, and tell whether no rank was silent for too long. A rank that left in order has nothing to show."""
        silent = [rank for rank in range(self._file.ranks) if not self._is_well(rank)]
        return not silent

    def _is_well(self, rank: int) -> bool:
        now, sign = self._clock(), self._file.sign(rank)
        last, since = self._seen.get(rank, (None, now))
        if sign != last:
            self._seen[rank] = (sign, now)
            return True
        loading = sign.state is RankState.LOADING
        limit_seconds = self._loading_timeout_seconds if loading else self._timeout_seconds
        return sign.state is RankState.LEFT or now - since <= limit_seconds
