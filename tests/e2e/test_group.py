"""One group of two ranks, as real processes, under requests that leave it as it was."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from grpc_status import rpc_status

from pixelpod.server.errors import from_call
from pixelpod.v1 import group_pb2, images_pb2
from tests.e2e.groups import Group, images_of, pixels_of, request, running
from tests.e2e.processes import SERVING, health_of, wait_serving, wait_until
from workers.devices import device_named
from workers.families import load_family
from workers.model_file import FamilyName, load_model_file
from workers.tiny_checkpoints import write_tiny_checkpoint

CONTROL_TIMEOUT_SECONDS = 4.0
LONG_STEPS = 50


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(FamilyName.FLUX2, tmp_path_factory.mktemp("flux2"))


@pytest.fixture(scope="module")
def group(model_file: Path) -> Iterator[Group]:
    settings = {"control_timeout_seconds": CONTROL_TIMEOUT_SECONDS, "heartbeat_seconds": 1.0, "queue_limit": 2}
    with running(model_file, environment={"GLOO_SOCKET_IFNAME": network_interface()}, **settings) as group:
        wait_serving(group.address, 90, group.process)
        yield group
        assert group.process.stop(seconds=10) == 0


def network_interface() -> str:
    """Return an interface that leads off this machine if there is one, for ranks to refuse."""
    interfaces = psutil.net_if_addrs().items()
    addresses = {
        name: [each.address for each in each_of if each.family == socket.AF_INET] for name, each_of in interfaces
    }
    return next((name for name, found in addresses.items() if found and found != ["127.0.0.1"]), "lo")


@pytest.fixture(autouse=True)
def _idle_before_and_after(group: Group) -> Iterator[None]:
    group.wait_idle()
    yield
    group.wait_idle()
    assert health_of(group.address) == SERVING


def test_status_tells_the_model_and_that_all_is_warm(group: Group) -> None:
    status = group.status
    assert status.state == group_pb2.GROUP_STATE_READY
    assert (status.group, status.ranks, status.free_slots, status.reason) == ("tiny-flux2", 2, 2, "")
    assert abs(status.epoch / 1000 - time.time()) < 600
    assert (status.model.name, status.model.revision, status.model.family) == ("tiny-flux2", "random-0", "flux2")
    assert status.model.limits.guidance_used
    assert not status.model.limits.negative_prompt
    assert [(bucket.width, bucket.height) for bucket in status.model.buckets] == [(64, 64), (96, 64)]
    for bucket in status.model.buckets:
        assert bucket.warm
        assert 0 < bucket.step_seconds < bucket.measured_seconds < 30


def test_images_equal_those_of_one_process(group: Group, model_file: Path) -> None:
    """Two ranks against one: float32 differs in its last digits, so a pixel may by one level."""
    events = group.execute(prompt="a lighthouse", width=96, seeds=[5, 2**64 - 1], steps=5)

    family = load_family(load_model_file(model_file), device_named("cpu"), None)
    batch = group_pb2.RunBatch(
        width=96,
        height=64,
        batch_size=2,
        steps=5,
        guidance_scale=4.0,
        max_sequence_length=64,
        slots=[group_pb2.Slot(prompt="a lighthouse", seed=seed) for seed in (5, 2**64 - 1)],
    )
    denoising = family.start(batch, [family.encode("a lighthouse", 64)] * 2)
    for _ in range(5):
        family.step(denoising)
    expected = family.decode(denoising)

    files = images_of(events)
    assert len(files) == 2
    for file, pixels in zip(files, expected, strict=True):
        assert np.abs(pixels_of(file).astype(int) - pixels.astype(int)).max() <= 1
    assert np.abs(pixels_of(files[0]).astype(int) - pixels_of(files[1]).astype(int)).mean() > 5


def test_events_come_in_order_and_done_tells_everything(group: Group) -> None:
    events = group.execute(seeds=[1, 2, 3])
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[-1] == "done"
    assert kinds[:-1] == sorted(kinds[:-1], reverse=True), "progress before image chunks"
    steps = [event.progress.step for event in events if event.WhichOneof("event") == "progress"]
    assert steps == sorted(steps)
    assert steps[-1] == events[-2 - len(images_of(events))].progress.steps == 4

    done, files = events[-1].done, images_of(events)
    assert (done.request_id, done.model, done.revision) == ("a-request", "tiny-flux2", "random-0")
    assert (done.group, done.epoch) == ("tiny-flux2", group.status.epoch)
    assert done.parameters == request(seeds=[1, 2, 3]).parameters
    assert [(image.index, image.seed) for image in done.images] == [(0, 1), (1, 2), (2, 3)]
    for image, file in zip(done.images, files, strict=True):
        assert image.sha256 == hashlib.sha256(file).hexdigest()
        assert (image.size_bytes, image.data, image.media_type) == (len(file), b"", "image/png")
        assert (image.width, image.height) == (64, 64)
    timings = done.timings
    parts = (timings.encode_seconds, timings.denoise_seconds, timings.decode_seconds, timings.image_encode_seconds)
    assert min(parts) > 0
    assert timings.queue_seconds + sum(parts[:3]) < timings.total_seconds < 30
    assert timings.compile_seconds == 0
    assert not done.warnings


def test_a_cut_prompt_is_told(group: Group) -> None:
    (warning,) = group.execute(prompt="a very long prompt " * 200)[-1].done.warnings
    assert warning.code == images_pb2.WARNING_CODE_PROMPT_TRUNCATED
    assert warning.field == "prompt"
    assert "text_encoder" in warning.message
    assert "very long" not in warning.message


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"width": 1000, "height": 1000}, grpc.StatusCode.INVALID_ARGUMENT, "width"),
        ({"width": 64, "height": 96}, grpc.StatusCode.INVALID_ARGUMENT, "width"),
        ({"max_sequence_length": 65}, grpc.StatusCode.INVALID_ARGUMENT, "max_sequence_length"),
        ({"steps": 0}, grpc.StatusCode.INVALID_ARGUMENT, "steps"),
        ({"guidance_scale": float("nan")}, grpc.StatusCode.INVALID_ARGUMENT, "guidance_scale"),
        ({"num_images": 2}, grpc.StatusCode.INVALID_ARGUMENT, "seeds"),
        ({"seeds": [0] * 1000}, grpc.StatusCode.INVALID_ARGUMENT, "num_images"),
        ({"model": "another"}, grpc.StatusCode.NOT_FOUND, "model"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    group: Group, changes: dict[str, Any], code: grpc.StatusCode, field: str
) -> None:
    before = group.metric("pixelpod_group_requests_total", code=code.name) or 0
    with pytest.raises(grpc.RpcError) as failure:
        group.execute(**changes)
    assert failure.value.code() == code
    assert from_call(failure.value).field == field
    group.wait_counted(code.name, before + 1)


def batches_computed(group: Group) -> float:
    return group.metric("pixelpod_group_batch_size_count") or 0


def test_the_whole_answer_is_that_of_the_stream(group: Group) -> None:
    message = request(seeds=[1, 2])
    message.timings.queue_seconds, message.timings.total_seconds = 100.0, 200.0
    warning = message.warnings.add(code=images_pb2.WARNING_CODE_SIZE_ADJUSTED, field="width", message="nearest size")
    answer, events = group.stub.Execute(message, timeout=30), group.execute(seeds=[1, 2])
    assert [image.data for image in answer.images] == images_of(events)
    assert (answer.timings.queue_seconds, answer.timings.total_seconds) == pytest.approx((100, 200), abs=30)
    assert answer.timings.total_seconds > 200 + answer.timings.denoise_seconds > 200
    assert list(answer.warnings) == [warning]
    for image in answer.images:
        image.ClearField("data")
    for told in (answer, events[-1].done):
        told.ClearField("timings")
    del answer.warnings[:]
    assert answer == events[-1].done


def test_a_whole_answer_that_is_too_large_says_so(group: Group) -> None:
    message = request()
    message.answer_limit_bytes = 1000
    with pytest.raises(grpc.RpcError) as failure:
        group.stub.Execute(message, timeout=30)
    assert failure.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert from_call(failure.value).reason == "UNARY_RESPONSE_TOO_LARGE"


def test_cancelling_frees_the_device(group: Group) -> None:
    cancelled_before = group.metric("pixelpod_group_requests_total", code="CANCELLED") or 0
    batches_before = batches_computed(group)
    call = group.stub.ExecuteStream(request(steps=LONG_STEPS, seeds=[1, 2, 3, 4]), timeout=60)
    assert next(events.progress.step for events in call if events.HasField("progress")) < LONG_STEPS / 2
    call.cancel()
    group.execute(steps=1)
    assert batches_computed(group) == batches_before + 1, "the cancelled batch was given up"
    group.wait_counted("CANCELLED", cancelled_before + 1)


def test_a_deadline_frees_the_device(group: Group) -> None:
    batches_before = batches_computed(group)
    with pytest.raises(grpc.RpcError) as failure:
        group.execute(seconds=0.3, steps=LONG_STEPS, seeds=[1, 2, 3, 4])
    assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    group.execute(steps=1)
    assert batches_computed(group) == batches_before + 1, "the batch of the expired request was given up"
    group.wait_counted("DEADLINE_EXCEEDED", 1)


def test_a_full_queue_refuses_at_once_with_a_delay(group: Group) -> None:
    calls = [group.stub.ExecuteStream(request(steps=LONG_STEPS, seeds=[1, 2, 3, 4]), timeout=60)]
    next(calls[0])
    wait_until(lambda: group.status.free_slots == 2, 10, lambda: "the first request does not start")
    calls += [group.stub.ExecuteStream(request(), timeout=60) for _ in range(2)]
    wait_until(lambda: group.status.free_slots == 0, 10, lambda: "the queue does not fill")
    status = group.status
    assert (len(status.computing), len(status.waiting)) == (1, 2)
    assert group.status.backlog_seconds > 0
    assert group.metric("pixelpod_group_queue_length") == 2

    started = time.monotonic()
    with pytest.raises(grpc.RpcError) as failure:
        group.execute()
    assert time.monotonic() - started < 1
    assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert rpc_status.from_call(failure.value) is not None
    assert from_call(failure.value).reason == "QUEUE_FULL"
    assert from_call(failure.value).retry_after_seconds > 0
    for call in calls:
        call.cancel()


def test_idle_for_longer_than_the_control_timeout_is_safe(group: Group) -> None:
    epoch = group.status.epoch
    until = time.monotonic() + CONTROL_TIMEOUT_SECONDS + 1
    for status in group.statuses():
        assert status.state == group_pb2.GROUP_STATE_READY
        if time.monotonic() > until:
            break
    assert len(images_of(group.execute())) == 1
    assert group.status.epoch == epoch


def test_every_listener_is_documented_or_on_loopback(group: Group) -> None:
    processes = [psutil.Process(group.process.pid), *group.process.children()]
    listeners = {
        f"{connection.laddr.ip.removeprefix('::ffff:')}:{connection.laddr.port}"
        for process in processes
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert {group.address, group.metrics_address} <= listeners
    assert all(listener.startswith("127.0.0.1:") for listener in listeners)


def test_metrics_tell_stages_state_and_build(group: Group) -> None:
    group.execute(seeds=[1, 2])
    for stage in ("encode", "denoise", "decode", "image_encode"):
        assert group.metric("pixelpod_group_stage_seconds_count", stage=stage) > 0
    assert group.metric("pixelpod_group_requests_total", model="tiny-flux2", code="OK") > 0
    assert group.metric("pixelpod_group_request_seconds_bucket", le="600.0") > 0
    assert group.metric("pixelpod_group_batch_size_sum") >= 2
    assert group.metric("pixelpod_group_queue_seconds_count") > 0
    assert group.metric("pixelpod_group_not_finite_total") == 0
    assert group.metric("pixelpod_group_state", state="ready") == 1
    assert group.metric("pixelpod_group_state", state="draining") == 0
    assert group.metric("pixelpod_build_info", model="tiny-flux2") == 1


def test_no_prompt_in_the_log(group: Group) -> None:
    group.execute(prompt="zanzibar " * 100)
    assert "ready" in group.process.log
    assert "zanzibar" not in group.process.log
