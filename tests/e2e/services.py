"""A whole service as real processes: the frontend and its group, started by the commands that a user types."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pixelpod.client import Client
from tests.e2e.processes import Process, free_address, start, wait_serving

READY_SECONDS = 90.0
PIXELPOD = (sys.executable, "-m", "pixelpod")


@dataclass(frozen=True)
class Service:
    """A frontend and one group. Use `serving`."""

    frontend: Process
    group: Process
    address: str
    group_address: str
    metrics_address: str

    @property
    def log(self) -> str:
        return self.frontend.log + self.group.log

    def client(self) -> Client:
        return Client(self.address)


@contextmanager
def serving(model_file: Path, ranks: int) -> Iterator[Service]:
    """Run `pixelpod group` and `pixelpod serve` within the context; they serve when it is entered."""
    address, group_address, metrics_address = free_address(), free_address(), free_address()
    group_argv = (
        *(*PIXELPOD, "group", "--model", str(model_file), "--ranks", str(ranks)),
        *("--listen", group_address, "--metrics", "none"),
    )
    frontend_argv = (
        *(*PIXELPOD, "serve", "--group", group_address, "--listen", address),
        *("--metrics", metrics_address, "--drain-delay-seconds", "0"),
    )
    with start(group_argv) as group, start(frontend_argv) as frontend:
        wait_serving(group_address, READY_SECONDS, group)
        wait_serving(address, READY_SECONDS, frontend)
        yield Service(frontend, group, address, group_address, metrics_address)
