"""The launcher's watch over the ranks of its host: a stopped rank is killed, and a world with a dead rank is cleared.

torchrun's agent sees only that a process ended. A process that is stopped, or waits for a dead rank within native code,
would keep a broken world from starting again for as long as a drain may take.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from dataclasses import dataclass

from workers.liveness import LivenessFile, RankState, RestartReason

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
FAREWELL_SECONDS = 3.0
"""After a rank died: how long the others may take to end by themselves. Rank 0 tells its callers in that time."""


_REASONS = {RankState.LOADING: RestartReason.NOT_READY, RankState.STALLED: RestartReason.STALLED}
"""Where a rank's last state tells why its world started again."""


@dataclass
class _Process:
    """What the watch knows of one rank process."""

    rank: int
    """Its number on this host."""
    pid: int
    beats: int
    state: RankState
    changed: float
    """When it last gave a sign, by time.monotonic()."""


class LivenessWatch:
    """Looks at the ranks on a thread of its own, as long as the launcher lives.

    Args:
        file: What the ranks write.
        timeout_seconds: Longest time without a sign of life while serving.
        loading_timeout_seconds: The same before.
    """

    def __init__(self, file: LivenessFile, timeout_seconds: float, loading_timeout_seconds: float) -> None:
        self._file = file
        self._timeout_seconds = timeout_seconds
        self._loading_timeout_seconds = loading_timeout_seconds
        self._processes: dict[int, _Process] = {}
        """Of the present world, by pid; empty once it broke or left."""
        self._met: dict[int, int] = {}
        """By rank of the host: the pid of its last process."""
        self._doomed: dict[int, float] = {}
        """Pids of processes whose world broke, with the time at which they are killed."""

    def start(self) -> None:
        """Look from now on."""
        threading.Thread(target=self._run, name="liveness-watch", daemon=True).start()

    def look(self) -> None:
        """Look once, and do what is to be done."""
        now = time.monotonic()
        for process in list(self._processes.values()):
            if process.pid in self._processes:
                self._judge(process, now)
        for rank in range(self._file.ranks):
            self._meet(rank, now)
        for pid, until in list(self._doomed.items()):
            if _has_ended(pid):
                del self._doomed[pid]
            elif now > until:
                _kill(pid, "it outlived its world")

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            self.look()

    def _meet(self, rank: int, now: float) -> None:
        """Note a process that was not there before; it may have ended already."""
        sign = self._file.sign(rank)
        known = sign.pid in self._processes or sign.pid in self._doomed
        over = sign.pid == self._met.get(rank) and _has_ended(sign.pid)
        if sign.pid != 0 and not known and not over:
            self._met[rank] = sign.pid
            self._processes[sign.pid] = _Process(rank, *sign, changed=now)

    def _judge(self, process: _Process, now: float) -> None:
        # First: a process that is gone by then showed nothing after this.
        ended = _has_ended(process.pid)
        pid, beats, state = self._file.sign(process.rank)
        if pid == process.pid and (beats, state) != (process.beats, process.state):
            process.beats, process.state, process.changed = beats, state, now
        if ended:
            self._note_end(process, now)
        elif (silent := now - process.changed) > self._limit_seconds(process.state):
            _kill(process.pid, f"rank {process.rank} of this host gave no sign of life for {silent:.1f} s")
            self._note_end(process, now, RestartReason.RANK_SILENT)

    def _limit_seconds(self, state: RankState) -> float:
        return self._loading_timeout_seconds if state is RankState.LOADING else self._timeout_seconds

    def _note_end(self, process: _Process, now: float, reason: RestartReason = RestartReason.RANK_LOST) -> None:
        """Note that a process ended. One that did not leave in order breaks its world, which takes the others along."""
        if process.state is RankState.LEFT:
            del self._processes[process.pid]
            return
        self._file.count_restart(_REASONS.get(process.state, reason))
        self._doomed |= dict.fromkeys(self._processes, now + FAREWELL_SECONDS)
        self._processes.clear()


def _kill(pid: int, why: str) -> None:
    logger.error("process %s is killed: %s", pid, why)
    os.kill(pid, signal.SIGKILL)


def _has_ended(pid: int) -> bool:
    """Tell whether a child process ended, without taking its exit code from whoever waits for it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
