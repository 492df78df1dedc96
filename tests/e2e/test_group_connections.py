"""A group with few file descriptors, and peers that hold more connections than it has."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from pixelpod.server.bounded_http import THREADS
from tests.e2e.groups import Group, images_of, running, write_quick_model
from tests.e2e.processes import SERVING, health_of, wait_serving, wait_until
from tests.raw_http import PREFACE, connections, is_closed

READY_SECONDS = 90.0
OPEN_FILES = 300
TAKEN = 172
"""Connections that it takes with so many."""


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_idle_connections_beyond_the_open_files_keep_nobody_out(tmp_path: Path) -> None:
    with running(write_quick_model(tmp_path), ranks=1) as group, ExitStack() as stack:
        # Rank 0 is not started yet. It has the limit from its launcher.
        psutil.Process(group.process.pid).rlimit(psutil.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
        wait_serving(group.address, READY_SECONDS, group.process)
        assert f"connections_taken={TAKEN}" in group.process.log
        rank0 = group.rank(0)
        for address, kept in ((group.address, TAKEN), (group.metrics_address, THREADS)):
            held = stack.enter_context(connections(_port(address), 400, first_bytes=PREFACE))
            wait_until(lambda held=held, kept=kept: sum(map(is_closed, held)) >= 400 - kept, 10, lambda: "no room")
        _answers(group)
        assert rank0.num_fds() < OPEN_FILES
        before = sum(rank0.cpu_times()[:2])
        time.sleep(2)
        assert sum(rank0.cpu_times()[:2]) - before < 0.5
        assert "Traceback" not in group.process.log


def _answers(group: Group) -> None:
    for _ in range(3):
        assert health_of(group.address) == SERVING
        assert len(images_of(group.execute())) == 1
        assert (group.metric("pixelpod_group_connections_closed_total", server="calls", reason="room") or 0) > 0
