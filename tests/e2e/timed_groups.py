"""Timed groups as processes that are killed, stopped and started again on their ports within a moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.processes import samples
from benchmarks.timed_model import BATCH_SIZES, STEPS
from tests.e2e.processes import free_address

END_SECONDS = 20.0


class Nursery:
    """Starts groups. Use `nursery`."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen
        self._lock = threading.Lock()

    def spawn(self, address: str, metrics_address: str, name: str, step_seconds: float, record: Path) -> int:
        """Start a group; return its process id once it serves."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        with self._lock:
            print(address, metrics_address, name, step_seconds, record, file=self._popen.stdin, flush=True)
            pid, serves = (self._popen.stdout.readline().strip() for _ in range(2))
        assert serves == address, f"{name} does not serve"
        return int(pid)


@contextmanager
def nursery() -> Iterator[Nursery]:
    """Run tests.e2e.nursery within the context. It and all its groups are killed at the end."""
    argv, pipe = [sys.executable, "-m", "tests.e2e.nursery"], subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as popen:
        try:
            yield Nursery(popen)
        finally:
            os.killpg(popen.pid, signal.SIGKILL)


class TimedGroup:
    """One group, in one process after another."""

    def __init__(self, nursery: Nursery, name: str, step_seconds: float, record: Path) -> None:
        self.name = name
        self.address = free_address()
        self.metrics_address = free_address()
        self.pids: list[int] = []
        """Of all its lives, the present one last."""
        self._nursery = nursery
        self._step_seconds = step_seconds
        self._record = record

    def start(self) -> None:
        """Serve, on the same ports as ever."""
        pid = self._nursery.spawn(self.address, self.metrics_address, self.name, self._step_seconds, self._record)
        self.pids.append(pid)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pids[-1], number)

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends it, and wait for the end."""
        process = psutil.Process(self.pids[-1])
        process.send_signal(number)
        process.wait(END_SECONDS)

    def metric(self, name: str) -> float:
        """Return a metric, summed over its labels."""
        return samples(self.metrics_address)[name]


@dataclass(frozen=True)
class Computed:
    """An image that a group computed to the end."""

    pid: int
    seed: int


class TimedGroups:
    """Some groups of one model.

    Args:
        nursery: Starts them.
        number: How many.
        step_seconds: Of their batches.
        folder: For the record of what they compute.
    """

    def __init__(self, nursery: Nursery, number: int, step_seconds: float, folder: Path) -> None:
        self._record = folder / "computed"
        self._record.touch()
        self.all = [TimedGroup(nursery, f"group-{name}", step_seconds, self._record) for name in range(number)]
        self.images_a_second = number * BATCH_SIZES[-1] / (STEPS * step_seconds)
        """What all compute in full batches."""

    @property
    def addresses(self) -> list[str]:
        return [group.address for group in self.all]

    def computed(self) -> list[Computed]:
        """Return all images that they computed, in order."""
        return [Computed(*map(int, line.split())) for line in self._record.read_text().splitlines()]

    def assert_idle(self) -> None:
        """Assert that every gauge says that no request is there."""
        for group in self.all:
            assert group.metric("pixelpod_group_in_flight") == 0
            assert group.metric("pixelpod_group_queue_length") == 0

    def kill_all(self) -> None:
        """End those that run, whatever state they are in."""
        for group in self.all:
            if group.pids and psutil.pid_exists(group.pids[-1]):
                group.end(signal.SIGKILL)
