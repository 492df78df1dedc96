"""The lifeline of a rank to its launcher: when the launcher dies, whatever the reason, its ranks die at once."""

from __future__ import annotations

import os

from pixelpod.lifeline import end_with_parent

LAUNCHER_PID_VARIABLE = "PIXELPOD_LAUNCHER_PID"
"""The environment variable in which a launcher tells its ranks its process id."""


def end_with_launcher() -> None:
    """Have the kernel kill this process when its launcher dies. Elsewhere than on Linux it notices its broken world."""
    end_with_parent(int(os.environ[LAUNCHER_PID_VARIABLE]))
