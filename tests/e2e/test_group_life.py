"""How a group begins and ends: health, refusals, signals, killed ranks, a killed launcher."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from pathlib import Path

import grpc
import psutil
import pytest
import yaml

from pixelpod.server.errors import from_call
from pixelpod.v1 import group_pb2
from tests.e2e.groups import LAUNCH, Group, environment_of, images_of, request, running, write_quick_model
from tests.e2e.processes import NOT_SERVING, SERVING, free_address, health_of, start, wait_serving, wait_until
from tests.events import events_of

SERVICE = "pixelpod.v1.WorkerGroup"
READY_SECONDS = 90.0


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that warms up quickly: one bucket, one batch size, one prompt length."""
    return write_quick_model(tmp_path_factory.mktemp("flux2"))


def test_from_loading_through_a_killed_rank_to_a_drain(model_file: Path) -> None:
    with running(model_file) as group:
        _not_serving_while_loading(group)
        wait_serving(group.address, READY_SECONDS, group.process)
        assert health_of(group.address, SERVICE) == SERVING
        _killed_rank_starts_the_world_again(group)
        _drain_finishes_what_was_accepted(group)


def _not_serving_while_loading(group: Group) -> None:
    status = group.status
    assert status.state in (group_pb2.GROUP_STATE_LOADING, group_pb2.GROUP_STATE_WARMING)
    assert status.reason
    assert status.free_slots == 0
    assert not any(bucket.warm for bucket in status.model.buckets)
    assert health_of(group.address) == health_of(group.address, SERVICE) == NOT_SERVING
    with pytest.raises(grpc.RpcError) as failure:
        group.execute()
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
    assert from_call(failure.value).reason == "GROUP_NOT_READY"
    assert from_call(failure.value).retry_after_seconds > 0


def _killed_rank_starts_the_world_again(group: Group) -> None:
    epoch, ranks = group.status.epoch, group.process.children()
    call = group.stub.ExecuteStream(request(steps=50), timeout=60)
    next(events for events in call if events.HasField("progress"))
    started = time.monotonic()
    group.rank(1).send_signal(signal.SIGKILL)
    with pytest.raises(grpc.RpcError) as failure:
        list(call)
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
    assert time.monotonic() - started < 5
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert not alive
    wait_serving(group.address, READY_SECONDS, group.process)
    print(f"serving again {time.monotonic() - started:.1f} s after a rank was killed")
    assert group.status.epoch > epoch
    assert len(images_of(group.execute())) == 1
    assert "failed (exitcode" in group.process.log


def _drain_finishes_what_was_accepted(group: Group) -> None:
    calls = [group.stub.ExecuteStream(request(steps=50), timeout=60) for _ in range(2)]
    wait_until(lambda: group.status.in_flight == 2, 10, lambda: "not accepted")
    answers: list[int] = []
    readers = [
        threading.Thread(target=lambda call=call: answers.append(len(images_of(events_of(call))))) for call in calls
    ]
    for reader in readers:
        reader.start()
    group.process.send(signal.SIGTERM)
    wait_until(lambda: health_of(group.address) != SERVING, 2, lambda: "still SERVING after SIGTERM")
    with pytest.raises(grpc.RpcError) as failure:
        group.execute()
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
    assert group.process.wait(20) == 0
    for reader in readers:
        reader.join(5)
    assert answers == [1, 1]
    with socket.create_server(tuple_of(group.address)):
        pass  # the port is free


def test_a_killed_launcher_leaves_no_rank(model_file: Path) -> None:
    with running(model_file) as group:
        wait_serving(group.address, READY_SECONDS, group.process)
        ranks = group.process.children()
        assert len(ranks) == 2
        group.process.send(signal.SIGKILL)
        _, alive = psutil.wait_procs(ranks, timeout=3)
        assert not alive


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_groups_on_one_host_and_an_instant_restart(model_file: Path) -> None:
    with running(model_file) as one, running(model_file) as other:
        for group in (one, other):
            wait_serving(group.address, READY_SECONDS, group.process)
        expected = images_of(other.execute())
        assert images_of(one.execute()) == expected
        assert one.process.stop() == 0
        with running(model_file, listen=one.address) as again:
            wait_serving(again.address, READY_SECONDS, again.process)
            assert images_of(again.execute()) == images_of(other.execute()) == expected


def test_signal_while_loading_ends_the_group_at_once(model_file: Path) -> None:
    with running(model_file) as group:
        assert group.status.state != group_pb2.GROUP_STATE_READY
        assert group.process.stop(seconds=10, number=signal.SIGINT) == 0


@pytest.mark.parametrize("taken", ["listen", "metrics"])
def test_an_address_in_use_is_refused_before_any_rank_starts(model_file: Path, taken: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        settings = {"model": model_file, "listen": free_address(), "metrics": free_address(), taken: address}
        with start([sys.executable, "-c", LAUNCH], environment_of(settings)) as process:
            assert process.wait(seconds=20) != 0
            assert f"AddressInUse: cannot listen on {address}" in process.log


def test_a_missing_checkpoint_is_refused_by_name(model_file: Path, tmp_path: Path) -> None:
    document = yaml.safe_load(model_file.read_text())
    document["path"] = "nowhere"
    file = tmp_path / "model.yaml"
    file.write_text(yaml.safe_dump(document))
    with start([sys.executable, "-c", LAUNCH], environment_of({"model": file})) as process:
        assert process.wait(seconds=20) != 0
        assert "ModelRefused" in process.log
        assert str(tmp_path / "nowhere") in process.log


def tuple_of(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
