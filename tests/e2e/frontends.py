"""Frontends as processes, started by the command that a user types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.processes import samples
from tests.e2e.processes import Process, free_address, start, wait_serving, wait_until
from tests.e2e.services import PIXELPOD, READY_SECONDS

IDLE_SECONDS = 10.0
GROUPS_SECONDS = 30.0


@dataclass(frozen=True)
class RunningFrontend:
    """A frontend that serves. Use `frontend`."""

    process: Process
    address: str
    metrics_address: str

    def metric(self, name: str) -> float:
        """Return a metric, summed over its labels; 0 where it was never counted."""
        return samples(self.metrics_address).get(name, 0.0)

    def wait_groups(self, number: int) -> None:
        """Wait until it has so many groups."""

        def up() -> float:
            return self.metric("pixelpod_frontend_group_up")

        wait_until(lambda: up() == number, GROUPS_SECONDS, lambda: f"{up():g} groups, not {number}")

    def wait_idle(self) -> None:
        """Wait until every gauge says that no request is there. A call's caller knows its end a moment before."""

        def left() -> tuple[float, float]:
            told = samples(self.metrics_address)
            return told["pixelpod_frontend_in_flight"], told.get("pixelpod_frontend_waiting", 0.0)

        wait_until(lambda: left() == (0, 0), IDLE_SECONDS, lambda: f"in flight and waiting: {left()}")


@contextmanager
def frontend(groups: Sequence[str], *options: str, address: str | None = None) -> Iterator[RunningFrontend]:
    """Run `pixelpod serve` for the groups at these addresses within the context."""
    address, metrics_address = address or free_address(), free_address()
    routes = [option for group in groups for option in ("--group", group)]
    argv = [*PIXELPOD, "serve", *routes, "--listen", address, "--metrics", metrics_address, *options]
    with start(argv) as process:
        wait_serving(address, READY_SECONDS, process)
        yield RunningFrontend(process, address, metrics_address)
