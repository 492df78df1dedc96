"""The lifeline of a process to its parent: when the parent dies, whatever the reason, the process dies at once."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: the signal that the kernel sends to this process when its parent dies."""


def end_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, also by `kill -9`.

    Only Linux has this; elsewhere the process lives on. It holds across an exec, and counts the thread that made the
    process as its parent.

    Args:
        parent_pid: The parent, as it was when it made this process.
    """
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        # The parent died before the kernel was asked.
        os.kill(os.getpid(), signal.SIGKILL)
