"""What goes wrong in ranks: which requests it costs, and how the group comes back."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import grpc
import numpy as np
import pytest

from pixelpod.server.errors import from_call
from tests.e2e.groups import Group, images_of, pixels_of, request, running, write_quick_model
from tests.e2e.processes import SERVING, health_of, wait_serving, wait_until
from tests.faults.codes import FAULTY_ENVIRONMENT, Fault
from workers.boundary import PATIENCE_SECONDS

READY_SECONDS = 90.0
LIVENESS_SECONDS = 1.0
STALL_SECONDS = 5.0
MARGIN_SECONDS = 4.0
"""For a busy machine, beyond the time in which a failure has to be seen."""


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that warms up quickly: one bucket, one batch size, one prompt length."""
    return write_quick_model(tmp_path_factory.mktemp("flux2"))


def picture(group: Group) -> np.ndarray:
    (image,) = images_of(group.execute())
    return pixels_of(image)


def failure_of(group: Group, fault: Fault) -> tuple[grpc.StatusCode, str, float]:
    """Return how a request with this fault ends: code, reason, and after how many seconds."""
    started = time.monotonic()
    with pytest.raises(grpc.RpcError) as failure:
        group.execute(seeds=[fault.seed])
    return failure.value.code(), from_call(failure.value).reason, time.monotonic() - started


@pytest.mark.timeout(6 * READY_SECONDS)
def test_what_ranks_meet_and_how_the_group_comes_back(model_file: Path) -> None:
    settings = {
        "max_restarts": 20,
        "liveness_timeout_seconds": LIVENESS_SECONDS,
        "stall_floor_seconds": STALL_SECONDS,
        "heartbeat_seconds": 0.5,
    }
    with running(model_file, environment=FAULTY_ENVIRONMENT, **settings) as group:
        wait_serving(group.address, READY_SECONDS, group.process)
        expected = picture(group)
        for fault in (Fault.ALL_RAISE_IN_STEP, Fault.DECODE_RAISES, Fault.OUT_OF_MEMORY):
            _met_by_all_ranks_it_costs_one_request(group, expected, fault)
        for rank in (1, 0):
            _a_stopped_rank_is_killed(group, expected, rank)
        _met_by_one_rank_it_costs_the_world(group, expected, Fault.RANK_1_RAISES_IN_START, 0.0, "rank_lost")
        _met_by_one_rank_it_costs_the_world(group, expected, Fault.RANK_1_RAISES_IN_STEP, PATIENCE_SECONDS, "rank_lost")
        _met_by_one_rank_it_costs_the_world(group, expected, Fault.RANK_1_HANGS_IN_STEP, STALL_SECONDS, "stalled")
        assert [restarts(group, reason) for reason in ("rank_silent", "rank_lost", "stalled")] == [2, 2, 1]


def _met_by_all_ranks_it_costs_one_request(group: Group, expected: np.ndarray, fault: Fault) -> None:
    epoch = group.status.epoch
    code, reason, _ = failure_of(group, fault)
    assert (code, reason) == (grpc.StatusCode.INTERNAL, "COMPUTATION_FAILED")
    assert health_of(group.address) == SERVING
    assert np.array_equal(picture(group), expected)
    assert group.status.epoch == epoch
    group.wait_idle()


def _met_by_one_rank_it_costs_the_world(
    group: Group, expected: np.ndarray, fault: Fault, within_seconds: float, restart: str
) -> None:
    epoch, before = group.status.epoch, restarts(group, restart)
    code, reason, seconds = failure_of(group, fault)
    assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "WORLD_BROKEN")
    assert within_seconds <= seconds < within_seconds + MARGIN_SECONDS
    comes_back(group, epoch, expected)
    assert restarts(group, restart) == before + 1


def _a_stopped_rank_is_killed(group: Group, expected: np.ndarray, rank: int) -> None:
    epoch, before = group.status.epoch, restarts(group, "rank_silent")
    call = group.stub.ExecuteStream(request(steps=50), timeout=60)
    next(events for events in call if events.HasField("progress"))
    stopped = group.rank(rank)
    stopped.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(grpc.RpcError) as failure:
        list(call)
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
    assert time.monotonic() - started < LIVENESS_SECONDS + MARGIN_SECONDS
    wait_until(lambda: not stopped.is_running(), MARGIN_SECONDS, lambda: "the stopped rank lives")
    comes_back(group, epoch, expected)
    assert restarts(group, "rank_silent") == before + 1


def test_the_second_signal_ends_the_group_at_once(model_file: Path) -> None:
    settings = {"drain_seconds": 60.0, "stall_floor_seconds": 60.0}
    with running(model_file, environment=FAULTY_ENVIRONMENT, **settings) as group:
        wait_serving(group.address, READY_SECONDS, group.process)
        call = group.stub.ExecuteStream(request(seeds=[Fault.RANK_1_HANGS_IN_STEP.seed]), timeout=60)
        wait_until(lambda: group.status.computing, 10, lambda: "computing does not begin")
        ranks = group.process.children()
        group.process.send(signal.SIGTERM)
        wait_until(lambda: health_of(group.address) != SERVING, 5, lambda: "still SERVING after SIGTERM")
        assert not group.process.ended
        group.process.send(signal.SIGTERM)
        group.process.wait(MARGIN_SECONDS)
        wait_until(lambda: not any(rank.is_running() for rank in ranks), MARGIN_SECONDS, lambda: "a rank lives")
        with pytest.raises(grpc.RpcError) as failure:
            list(call)
        assert failure.value.code() == grpc.StatusCode.UNAVAILABLE


def restarts(group: Group, reason: str) -> float:
    return group.metric("pixelpod_group_restarts_total", reason=reason) or 0


def comes_back(group: Group, epoch: int, expected: np.ndarray) -> None:
    wait_until(lambda: health_of(group.address) != SERVING, MARGIN_SECONDS, lambda: "still SERVING")
    started = time.monotonic()
    wait_serving(group.address, READY_SECONDS, group.process)
    print(f"serving again after {time.monotonic() - started:.1f} s")
    assert group.status.epoch > epoch
    assert np.array_equal(picture(group), expected)
    group.wait_idle()


def test_a_bad_compile_cache_costs_a_restart_and_not_the_group(model_file: Path, tmp_path: Path) -> None:
    environment = {**FAULTY_ENVIRONMENT, "PIXELPOD_TEST_BAD_CACHE": "1"}
    with running(model_file, ranks=1, environment=environment, cache_dir=tmp_path / "cache") as group:
        wait_serving(group.address, READY_SECONDS, group.process)
        assert restarts(group, "not_ready") == 1
        assert "does without the compile cache" in group.process.log
        picture(group)
