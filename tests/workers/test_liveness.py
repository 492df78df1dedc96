"""Signs of life, and what the launcher does without them; the ranks are idle child processes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import wait_until
from workers import liveness_watch
from workers.liveness import LivenessFile, Pulse, RankState, RestartReason, Sign
from workers.liveness_watch import LivenessWatch

SECONDS = 10.0
TIMEOUT_SECONDS = 0.3
PAUSE_SECONDS = 0.01
"""Between two looks."""


@pytest.fixture
def file(tmp_path: Path) -> LivenessFile:
    return LivenessFile.create(tmp_path / "liveness", ranks=2)


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Return two children that live until they are killed."""
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    yield children
    for child in children:
        child.kill()
        child.wait()


@pytest.fixture
def watch(file: LivenessFile) -> LivenessWatch:
    return LivenessWatch(file, TIMEOUT_SECONDS, loading_timeout_seconds=60.0)


def show(file: LivenessFile, ranks: list[subprocess.Popen[bytes]], beats: int, state: RankState) -> None:
    for number, child in enumerate(ranks):
        file.write(number, Sign(child.pid, beats, state))


def look_until_killed(watch: LivenessWatch, *children: subprocess.Popen[bytes]) -> None:
    def killed() -> bool:
        watch.look()
        return all(child.poll() is not None for child in children)

    wait_until(killed, SECONDS, lambda: "nobody was killed")


def test_signs_cross_processes(tmp_path: Path, file: LivenessFile) -> None:
    assert file.sign(1) == Sign(0, 0, RankState.LOADING)
    other = LivenessFile(tmp_path / "liveness")
    other.write(1, Sign(77, 5, RankState.SERVING))
    other.count_restart(RestartReason.STALLED)
    assert (file.ranks, file.sign(0).pid, file.sign(1)) == (2, 0, Sign(77, 5, RankState.SERVING))
    assert file.restarts() == {reason: int(reason is RestartReason.STALLED) for reason in RestartReason}


def test_a_pulse_beats_by_itself(file: LivenessFile) -> None:
    pulse = Pulse(file, local_rank=1, interval_seconds=0.01)
    assert file.sign(1).pid == os.getpid()
    wait_until(lambda: file.sign(1).beats > 5, SECONDS, lambda: "no beats")
    pulse.enter(RankState.LEFT)
    assert file.sign(1).state is RankState.LEFT


def test_a_silent_rank_is_killed_and_takes_its_world_along(
    file: LivenessFile,
    ranks: list[subprocess.Popen[bytes]],
    watch: LivenessWatch,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(liveness_watch, "FAREWELL_SECONDS", 0.2)
    show(file, ranks, 1, RankState.SERVING)
    watch.look()
    started = time.monotonic()
    while ranks[1].poll() is None:
        file.write(0, Sign(ranks[0].pid, time.monotonic_ns(), RankState.SERVING))
        watch.look()
        time.sleep(PAUSE_SECONDS)
    assert TIMEOUT_SECONDS <= time.monotonic() - started < SECONDS
    assert ranks[0].poll() is None, "it has time to say goodbye"
    look_until_killed(watch, ranks[0])
    assert file.restarts()[RestartReason.RANK_SILENT] == 1
    assert sum(file.restarts().values()) == 1
    assert "rank 1 of this host gave no sign of life for 0." in caplog.text


def test_loading_ranks_may_be_silent(
    file: LivenessFile, ranks: list[subprocess.Popen[bytes]], watch: LivenessWatch
) -> None:
    show(file, ranks, 1, RankState.LOADING)
    watch.look()
    until = time.monotonic() + 2 * TIMEOUT_SECONDS
    while time.monotonic() < until:
        watch.look()
        time.sleep(PAUSE_SECONDS)
    assert [child.poll() for child in ranks] == [None, None]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (RankState.SERVING, RestartReason.RANK_LOST),
        (RankState.STALLED, RestartReason.STALLED),
        (RankState.LOADING, RestartReason.NOT_READY),
    ],
)
def test_a_dead_rank_is_a_restart_by_its_reason(
    file: LivenessFile,
    ranks: list[subprocess.Popen[bytes]],
    watch: LivenessWatch,
    state: RankState,
    reason: RestartReason,
) -> None:
    show(file, ranks, 1, RankState.SERVING)
    watch.look()
    file.write(0, Sign(ranks[0].pid, 2, state))
    for child in ranks:
        child.kill()
        child.wait()
    watch.look()
    assert file.restarts()[reason] == 1
    assert sum(file.restarts().values()) == 1, "one world"


def test_a_rank_that_ended_between_two_looks_is_counted_once(
    file: LivenessFile, ranks: list[subprocess.Popen[bytes]], watch: LivenessWatch
) -> None:
    watch.look()
    file.write(0, Sign(ranks[0].pid, 1, RankState.LOADING))
    ranks[0].kill()
    ranks[0].wait()
    for _ in range(5):
        watch.look()
    assert file.restarts()[RestartReason.NOT_READY] == 1
    assert sum(file.restarts().values()) == 1


def test_a_pid_that_is_given_again_is_another_process(
    file: LivenessFile, watch: LivenessWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = False
    monkeypatch.setattr(liveness_watch, "_has_ended", lambda pid: ended)
    for state, reason in (
        (RankState.SERVING, RestartReason.RANK_LOST),
        (RankState.LOADING, RestartReason.NOT_READY),
    ):
        ended = False
        file.write(0, Sign(4321, 1, state))
        watch.look()
        ended = True
        for _ in range(3):
            watch.look()
        assert file.restarts()[reason] == 1
    assert sum(file.restarts().values()) == 2


def test_a_rank_that_left_in_order_breaks_nothing(
    file: LivenessFile, ranks: list[subprocess.Popen[bytes]], watch: LivenessWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness_watch, "FAREWELL_SECONDS", 0.0)
    show(file, ranks, 1, RankState.SERVING)
    watch.look()
    file.write(1, Sign(ranks[1].pid, 2, RankState.LEFT))
    ranks[1].kill()
    ranks[1].wait()
    watch.look()
    watch.look()
    assert ranks[0].poll() is None
    assert sum(file.restarts().values()) == 0


def test_a_new_world_is_not_taken_for_the_old_one(
    file: LivenessFile, ranks: list[subprocess.Popen[bytes]], watch: LivenessWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness_watch, "FAREWELL_SECONDS", 0.0)
    old, new = ranks
    file.write(0, Sign(old.pid, 1, RankState.SERVING))
    watch.look()
    old.kill()
    old.wait()
    file.write(0, Sign(new.pid, 1, RankState.LOADING))
    for _ in range(3):
        watch.look()
    assert new.poll() is None
    assert sum(file.restarts().values()) == 1
