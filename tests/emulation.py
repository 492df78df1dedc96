"""The emulated TPU for tests: torch_tpu's device "tpu" on any Linux host, by one environment variable.

`emulated_tpu/sitecustomize.py` does the work, in the processes that a test starts with `emulated_environment()`.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).with_name("emulated_tpu")
PACKAGES = ("torch_tpu", "lammps_jax_pjrt_cpu")


def emulated_environment() -> dict[str, str]:
    """Return the environment variable with which a process finds one emulated TPU chip."""
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{FOLDER}{os.pathsep}{inherited}" if inherited else str(FOLDER)}


def missing() -> str:
    """Return why this environment can't emulate a TPU; empty where it can."""
    absent = [package for package in PACKAGES if find_spec(package) is None]
    return f"the emulated TPU needs {' and '.join(absent)}, which this platform lacks" if absent else ""


def require_emulated_tpu() -> None:
    """Skip the test that calls this, or the module where it stands at the top, where a TPU can't be emulated.

    In CI, which sets CI=true, nothing may be skipped: there it fails.
    """
    reason = missing()
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason, allow_module_level=True)
