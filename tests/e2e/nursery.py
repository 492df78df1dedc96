"""A process that has imported all that a timed group needs, and forks groups that serve within a moment.

python -m tests.e2e.nursery

Reads what to start from standard input, one line each: address, address of metrics, name, seconds of a step and a file.
Each group writes its process id and its address to standard output, and the seed of each image that it computed to that
file, with its process id.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from benchmarks.timed_group import TimedRunner, serve
from pixelpod.server.logs import configure_logging
from pixelpod.v1 import group_pb2
from workers.batch import BatchResult
from workers.boundary import Boundary


class RecordingRunner(TimedRunner):
    """Writes down which images it computed to the end."""

    def __init__(self, step_seconds: float, record: Path) -> None:
        super().__init__(step_seconds)
        self._record = record

    def run(
        self, batch: group_pb2.RunBatch, boundary: Boundary, on_step: Callable[[int], None] = lambda step: None
    ) -> BatchResult:
        result = super().run(batch, boundary, on_step)
        with self._record.open("a") as record:
            record.write("".join(f"{os.getpid()} {slot.seed}\n" for slot in batch.slots))
        return result


def main() -> None:
    # The kernel forgets groups that ended: nobody here waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            _serve(*line.split())


def _serve(listen: str, metrics: str, name: str, step_seconds: str, record: str) -> NoReturn:
    """Be a group until SIGTERM."""
    print(os.getpid(), flush=True)
    try:
        configure_logging("text", name, "WARNING")
        serve(listen, metrics, name, RecordingRunner(float(step_seconds), Path(record)))
    except Exception:  # noqa: BLE001 -- told to the test that waits for the address
        traceback.print_exc()
        print("failed", flush=True)
    os._exit(0)  # what a fork inherits to tidy up is not its own


if __name__ == "__main__":
    main()
