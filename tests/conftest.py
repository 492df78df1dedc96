"""Fixtures of every test: no process is left behind."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import psutil
import pytest

SESSION_VARIABLE = "PIXELPOD_TEST_SESSION"
EXIT_SECONDS = 5.0

# Before any test imports torch: the tests' own process computes on the CPU, also where torch_tpu is installed.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"


@pytest.fixture(scope="session", autouse=True)
def _session_leaves_no_process() -> Iterator[None]:
    """Mark every process that the tests start, so that orphans are found too, and look for them at the end."""
    os.environ[SESSION_VARIABLE] = uuid.uuid4().hex
    yield
    left = _still_running(_marked_processes())
    assert not left, f"the test session left processes behind: {left}"


@pytest.fixture(autouse=True)
def _test_leaves_no_process(_session_leaves_no_process: None) -> Iterator[None]:
    """Fail a test that leaves a process behind. Processes of wider fixtures are older than the test."""
    # By number, not by mark: a process that was forked a moment ago shows its own environment only after its exec.
    before = set(psutil.pids())
    yield
    left = _still_running([process for process in _marked_processes() if process.pid not in before])
    assert not left, f"the test left processes behind: {left}"


def _marked_processes() -> list[psutil.Process]:
    mark = os.environ[SESSION_VARIABLE]
    found = []
    for process in psutil.process_iter():
        try:
            # This process's own mark was set after its start, so its initial environment lacks it.
            if process.environ().get(SESSION_VARIABLE) == mark and not _is_helper(process):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _is_helper(process: psutil.Process) -> bool:
    """Tell whether Python's own multiprocessing tracker is meant, which lives as long as its parent."""
    return "multiprocessing.resource_tracker" in " ".join(process.cmdline())


def _still_running(processes: list[psutil.Process]) -> list[str]:
    _, alive = psutil.wait_procs(processes, timeout=EXIT_SECONDS)
    return [f"{process.pid} {' '.join(process.cmdline())}" for process in alive if process.is_running()]
