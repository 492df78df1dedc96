"""The main loop of the ranks after 0: they obey rank 0's commands, in order, and decide nothing."""

from __future__ import annotations

from typing import Literal

from workers.batch import BatchAborted, BatchRunner
from workers.boundary import FollowerBoundary
from workers.control import ControlChannel, WorldBroken


def follow(channel: ControlChannel, runner: BatchRunner, until: Literal["heartbeat", "shutdown"]) -> None:
    """Obey commands until the first one of kind `until`.

    Raises:
        WorldBroken: if the ranks no longer work together.
    """
    boundary = FollowerBoundary(channel)
    while True:
        command = channel.receive()
        kind = command.WhichOneof("command")
        if kind == "run_batch":
            try:
                runner.run(command.run_batch, boundary)
            except BatchAborted:
                # All ranks gave it up together; rank 0 tells its callers.
                continue
        elif kind == until:
            return
        elif kind != "heartbeat":
            raise WorldBroken(f"rank 0 sent {kind} between batches")
