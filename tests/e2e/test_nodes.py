"""One group on several nodes: here each is a launcher on loopback, with one rank."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.groups import Group, images_of, pixels_of, running, write_quick_model
from tests.e2e.processes import SERVING, free_address, health_of, wait_serving, wait_until

READY_SECONDS = 90.0


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that warms up quickly: one bucket, one batch size, one prompt length."""
    return write_quick_model(tmp_path_factory.mktemp("flux2"))


@contextmanager
def node(model_file: Path, node_rank: int, rendezvous: str, nodes: int = 2, **settings: object) -> Iterator[Group]:
    """Start one node of a group."""
    values = {"nodes": nodes, "node_rank": node_rank, "rendezvous": rendezvous, "heartbeat_seconds": 0.5, **settings}
    # Each node takes its host for its own, with all cores.
    with running(model_file, ranks=1, environment={"OMP_NUM_THREADS": "1"}, **values) as group:
        yield group


@pytest.mark.timeout(3 * READY_SECONDS)
def test_two_nodes_serve_and_outlive_each_launcher(model_file: Path) -> None:
    rendezvous = free_address()
    with node(model_file, 0, rendezvous) as first:
        with node(model_file, 1, rendezvous) as second:
            wait_serving(first.address, READY_SECONDS, first.process)
            assert first.status.ranks == 2
            pixels, epoch = _picture(first), first.status.epoch
            second.process.send(signal.SIGKILL)
            wait_until(lambda: health_of(first.address) != SERVING, 10, lambda: first.process.log)
        with node(model_file, 1, rendezvous) as second:
            _serves_again(first, pixels, epoch)
            first.process.send(signal.SIGKILL)
            first.process.wait(10)
            with node(model_file, 0, rendezvous) as first_again:
                _serves_again(first_again, pixels, epoch)
                assert first_again.process.stop() == 0
            assert second.process.wait(10) == 0


def test_a_missing_node_is_named(model_file: Path) -> None:
    rendezvous = free_address()
    for present, missing in ((0, 1), (1, 0)):
        with node(model_file, present, rendezvous, join_timeout_seconds=1) as alone:
            assert alone.process.wait(30) == 1
            assert f"missing after 1 s at {rendezvous}: node {missing}\n" in alone.process.log


def test_a_waiting_node_obeys_signals(model_file: Path) -> None:
    with node(model_file, 1, free_address()) as second:
        wait_until(lambda: "waiting for the other nodes" in second.process.log, 30, lambda: second.process.log)
        assert second.process.stop() == 0


def _serves_again(group: Group, pixels: np.ndarray, epoch: int) -> None:
    started = time.monotonic()
    wait_serving(group.address, READY_SECONDS, group.process)
    print(f"serving again after {time.monotonic() - started:.1f} s")
    assert group.status.epoch > epoch
    assert np.array_equal(_picture(group), pixels)


def _picture(group: Group) -> np.ndarray:
    (image,) = images_of(group.execute())
    return pixels_of(image)
