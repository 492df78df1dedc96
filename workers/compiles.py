"""Counts and times torch.compile's work, by the component and bucket that it was done for.

After a group is ready this must stand still (law 3): a compile then stalls every request behind it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from torch._dynamo.callback import CallbackArgs, callback_handler

Place = tuple[str, str]
"""Component and bucket, for example ("transformer", "64x64")."""

ELSEWHERE: Place = ("other", "none")
"""Where compiles outside of any `CompileTracker.at` are counted."""


class CompileTracker:
    """Listens to every compile of this process from its construction until `close`.

    Args:
        observe: Called after each compile with component, bucket and seconds; for metrics.
    """

    def __init__(self, observe: Callable[[str, str, float], None] | None = None) -> None:
        self._observe = observe
        self._place = ELSEWHERE
        self._started = 0.0
        self._counts: Counter[Place] = Counter()
        self._seconds: defaultdict[Place, float] = defaultdict(float)
        callback_handler.register_start_callback(self._on_start)
        callback_handler.register_end_callback(self._on_end)

    def close(self) -> None:
        """Stop listening."""
        callback_handler.remove_start_callback(self._on_start)
        callback_handler.remove_end_callback(self._on_end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextmanager
    def at(self, component: str, bucket: str) -> Iterator[None]:
        """Count compiles within this context for `component` and `bucket` (width x height, such as "64x64")."""
        outer, self._place = self._place, (component, bucket)
        try:
            yield
        finally:
            self._place = outer

    def counts(self) -> dict[Place, int]:
        """Return the number of compiles so far by component and bucket."""
        return dict(self._counts)

    def count(self) -> int:
        """Return the number of compiles so far."""
        return self._counts.total()

    def seconds(self) -> float:
        """Return the seconds spent compiling so far."""
        return sum(self._seconds.values(), 0.0)

    def _on_start(self, _: CallbackArgs) -> None:
        self._started = time.monotonic()

    def _on_end(self, _: CallbackArgs) -> None:
        seconds = time.monotonic() - self._started
        self._counts[self._place] += 1
        self._seconds[self._place] += seconds
        if self._observe is not None:
            self._observe(*self._place, seconds)
