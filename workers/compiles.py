"""Counts and times what is compiled, by the component and bucket that it was compiled for.

After a group is ready this must stand still (law 3): a compile then stalls every request behind it.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from torch._dynamo.callback import CallbackArgs, callback_handler
from torch._dynamo.utils import counters, get_compilation_metrics

from workers.devices import Programs

logger = logging.getLogger(__name__)

Place = tuple[str, str]
"""Component and bucket, for example ("transformer", "64x64")."""

ELSEWHERE: Place = ("other", "none")
"""Where compiles outside of any `CompileTracker.at` are counted."""

COMPONENTS = ("text_encoder", "transformer", "vae", ELSEWHERE[0])
"""What compiles are told apart by."""


@dataclass
class Compiles:
    """How much was compiled: graphs of torch.compile, and operators where the device compiles those too."""

    compiled: int = 0
    """Really compiled."""
    cached: int = 0
    """Found in a cache of an earlier process."""
    seconds: float = 0.0
    """Of both."""

    @property
    def count(self) -> int:
        """All of them: each kept its request waiting."""
        return self.compiled + self.cached

    def add(self, other: Compiles) -> None:
        """Count `other` in."""
        self.compiled += other.compiled
        self.cached += other.cached
        self.seconds += other.seconds


class CompileTracker:
    """Listens to every compile of this process from its construction until `close`.

    Args:
        programs: `Device.programs`. Where the device does not count, the graphs of torch.compile are counted.
        observe: Called for what was compiled with component and bucket; for metrics.
    """

    def __init__(
        self,
        programs: Callable[[], Programs | None] = lambda: None,
        observe: Callable[[str, str, Compiles], None] = lambda component, bucket, compiles: None,
    ) -> None:
        self._programs = programs
        self._observe = observe
        self._place = self._left = ELSEWHERE
        self._started = 0.0
        self._compiling = False
        self._submits = False
        self._programs_seen = programs()
        self._graph_hits_seen = 0
        self._told: dict[Place, Compiles] | None = None
        """What was compiled when the group got ready, and logged since."""
        self._graphs: list[str] = []
        """Compile ids of graphs since `at` was entered."""
        self._total: defaultdict[Place, Compiles] = defaultdict(Compiles)
        self._untaken: defaultdict[str, Compiles] = defaultdict(Compiles)
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
    def at(self, component: str, bucket: str, submits: bool = False) -> Iterator[None]:
        """Count compiles within this context for `component` and `bucket` (width x height, such as "64x64").

        On an asynchronous device operators compile when their turn comes: those that do so after the end of a context
        count for it too, until the next begins. So do graphs that it `submits` only, for the compiler to go on with.
        """
        self._count_operators()
        outer, self._place = self._place, (component, bucket)
        self._submits = submits
        self._graphs.clear()
        try:
            yield
        finally:
            self._count_operators()
            self._warn(self._place)
            self._left, self._place = self._place, outer

    def expect_no_more(self) -> None:
        """From now on, log what is compiled as a warning."""
        self._told = {place: replace(compiles) for place, compiles in self._total.items()}

    @property
    def compiling(self) -> bool:
        """Whether torch.compile is at work now. Any thread may ask."""
        return self._compiling

    def by_place(self) -> dict[Place, Compiles]:
        """Return what was compiled so far, where anything was."""
        return {place: compiles for place, compiles in self._total.items() if compiles.count}

    def by_component(self) -> dict[str, Compiles]:
        """Return what was compiled so far for all buckets together."""
        components: defaultdict[str, Compiles] = defaultdict(Compiles)
        for (component, _), compiles in self._total.items():
            components[component].add(compiles)
        return components

    def take(self) -> dict[str, Compiles]:
        """Return by component what was compiled since this was called last."""
        self._count_operators()
        self._warn(self._left)
        taken, self._untaken = self._untaken, defaultdict(Compiles)
        return taken

    def _on_start(self, _: CallbackArgs) -> None:
        self._count_operators()
        self._graph_hits_seen = _graph_hits()
        self._started = time.monotonic()
        self._compiling = True

    def _on_end(self, event: CallbackArgs) -> None:
        self._compiling = False
        seconds, programs = time.monotonic() - self._started, self._new_programs()
        self._graphs.append(event.compile_id)
        if programs is None:
            hit = _graph_hits() > self._graph_hits_seen
            self._count(self._place, Compiles(compiled=int(not hit), cached=int(hit), seconds=seconds))
        elif programs.compiled or programs.cached or self._submits:
            self._count(self._place, Compiles(programs.compiled, programs.cached, seconds))
        else:
            # Traced again, to a program that this process has.
            self._count(self._place, Compiles(cached=1, seconds=seconds))

    def _count_operators(self) -> None:
        programs = self._new_programs()
        if programs is not None and (programs.compiled or programs.cached):
            place = self._left if self._place == ELSEWHERE else self._place
            self._count(place, Compiles(programs.compiled, programs.cached, programs.seconds))

    def _new_programs(self) -> Programs | None:
        """Return what the device's compiler made since this was called last; None where it does not count."""
        seen, now = self._programs_seen, self._programs()
        self._programs_seen = now
        if seen is None or now is None:
            return None
        return Programs(now.compiled - seen.compiled, now.cached - seen.cached, now.seconds - seen.seconds)

    def _count(self, place: Place, compiles: Compiles) -> None:
        self._total[place].add(compiles)
        self._untaken[place[0]].add(compiles)
        self._observe(*place, compiles)

    def _warn(self, place: Place) -> None:
        """Log what was compiled at this place since the group got ready, and why, each compile once."""
        if self._told is None:
            return
        before, now = self._told.get(place, Compiles()), self._total[place]
        if now.count == before.count:
            return
        self._told[place] = replace(now)
        component, bucket = place
        logger.warning(
            "compiled after the group was ready",
            extra={
                "component": component,
                "bucket": bucket,
                "compiled": now.compiled - before.compiled,
                "cached": now.cached - before.cached,
                "seconds": round(now.seconds - before.seconds, 3),
                "reason": _reason(self._graphs),
            },
        )


def _graph_hits() -> int:
    """Return how many graphs torch.compile found in its cache on disk so far, traced but not compiled."""
    return counters["aot_autograd"]["autograd_cache_hit"]


def _reason(compile_ids: list[str]) -> str:
    """Return why torch.compile compiled these graphs: the guards that failed, which tell shapes and types."""
    if not compile_ids:
        return "the device compiled operators that warm-up did not reach"
    found = [event.recompile_reason for event in get_compilation_metrics() if event.compile_id in compile_ids]
    return "; ".join(reason or "the module's first graph" for reason in found)
