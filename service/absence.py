"""How long a group that is away should take to be ready again, by how long it took the last time."""

from __future__ import annotations

import time
from collections.abc import Callable


class Absence:
    """The times at which a group was not ready.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._lasted: float | None = None

    def note(self, ready: bool) -> None:
        """Note whether the group is ready, at every change."""
        if not ready and self._since is None:
            self._since = self._clock()
        elif ready and self._since is not None:
            self._lasted, self._since = self._clock() - self._since, None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the group is expected to be ready; 0 if it should be by now, None if that is not known."""
        if self._since is None or self._lasted is None:
            return None
        return max(0.0, self._lasted - (self._clock() - self._since))
