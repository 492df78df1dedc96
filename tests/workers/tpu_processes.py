"""Runs modules in processes of their own on the emulated TPU, with the environment that a launcher gives to ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from tests.emulation import emulated_environment
from workers.model_file import Execution

SECONDS = 400.0
"""Longest time of one process."""


def run_on_tpu(
    module: str,
    arguments: Sequence[str],
    execution: Execution,
    seconds: float = SECONDS,
) -> str:
    """Run `python -m module arguments` to its end, and return the last line that it prints, if any."""
    environment = {**os.environ, **emulated_environment()}
    prepare = "import json; from workers.devices import device_named; from workers.model_file import Execution;"
    show = f"print(json.dumps(device_named('tpu').prepare_environment(1, Execution('{execution}'))))"
    environment |= json.loads(_last_line([sys.executable, "-c", prepare + show], environment, seconds))
    return _last_line([sys.executable, "-m", module, *arguments], environment, seconds)


def _last_line(command: list[str], environment: dict[str, str], seconds: float) -> str:
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    assert process.returncode == 0, process.stderr[-4000:]
    return process.stdout.splitlines()[-1] if process.stdout else ""
