"""The lifeline of a rank to its launcher: when the launcher dies, whatever the reason, its ranks die at once."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

LAUNCHER_PID_VARIABLE = "PIXELPOD_LAUNCHER_PID"
"""The environment variable in which a launcher tells its ranks its process id."""

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: the signal that the kernel sends to this process when its parent dies."""


def end_with_launcher() -> None:
    """Have the kernel kill this process when its launcher dies, also by `kill -9`.

    Only Linux has this; elsewhere a rank outlives its launcher until it notices that its world broke.
    """
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(os.environ[LAUNCHER_PID_VARIABLE]):
        # The launcher died before the kernel was asked.
        os.kill(os.getpid(), signal.SIGKILL)
