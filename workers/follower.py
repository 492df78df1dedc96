"""The main loop of the ranks after 0: they obey rank 0's commands, in order, and decide nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

from workers.batch import BatchAborted, BatchRunner
from workers.boundary import FollowerBoundary
from workers.compile_reports import gather_reports
from workers.control import ControlChannel, WorldBroken


def follow_warm_up(channel: ControlChannel, runner: BatchRunner) -> bool:
    """Obey commands until rank 0 says whether the group may serve. Returns that.

    Raises:
        WorldBroken: if the ranks no longer work together.
    """
    if _obey(channel, runner, until="heartbeat") == "shutdown":
        return False
    gather_reports(channel, runner.compiles.by_component())
    runner.compiles.expect_no_more()
    return True


def follow(channel: ControlChannel, runner: BatchRunner) -> None:
    """Obey commands until rank 0 says that the world ends.

    Raises:
        WorldBroken: if the ranks no longer work together.
    """
    _obey(channel, runner, until="shutdown")


def _obey(channel: ControlChannel, runner: BatchRunner, until: Literal["heartbeat", "shutdown"]) -> str:
    """Obey commands until the first one of kind `until`, or a shutdown. Returns which it was.

    Raises:
        WorldBroken: if the ranks no longer work together.
    """
    boundary = FollowerBoundary(channel)
    while True:
        command = channel.receive()
        kind = command.WhichOneof("command")
        if kind == "run_batch":
            # Aborted: all ranks gave it up together; rank 0 tells its callers.
            with suppress(BatchAborted):
                runner.run(command.run_batch, boundary)
            gather_reports(channel, runner.compiles.take())
        elif kind in (until, "shutdown"):
            return kind
        elif kind != "heartbeat":
            raise WorldBroken(f"rank 0 sent {kind} between batches")
