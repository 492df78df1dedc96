"""The endpoint over real gRPC, with the test in the place of the leader."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pixelpod.server.errors import ComputationFailed, Unavailable, from_call
from pixelpod.server.events import CHUNK_BYTES
from pixelpod.server.probes import LIVE
from pixelpod.server.reloading import FileRefused
from pixelpod.server.transport import AddressInUse, PlainTextRefused
from pixelpod.v1 import group_pb2, group_pb2_grpc, images_pb2
from tests.certificates import Authority
from tests.e2e.processes import free_address, health_of, wait_until
from tests.events import events_of
from tests.tokens import bearer, entry, write_tokens
from tests.workers.models import make_model, make_request
from workers.endpoint import SERVICE, Endpoint
from workers.estimates import Estimates
from workers.liveness import LivenessFile, RankState, Sign
from workers.metrics import GroupMetrics
from workers.queue import RequestQueue
from workers.request import AcceptedRequest
from workers.settings import GroupSettings
from workers.status import StatusBoard
from workers.vitals import Vitals

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
WAIT_SECONDS = 10.0


@dataclass
class Served:
    """An endpoint that serves, and both sides of it."""

    endpoint: Endpoint
    queue: RequestQueue
    status: StatusBoard
    metrics: GroupMetrics
    address: str
    channel: grpc.Channel
    liveness: LivenessFile

    def execute(self, timeout: float | None = WAIT_SECONDS, **changes: Any) -> Any:
        return group_pb2_grpc.WorkerGroupStub(self.channel).Execute(make_request(**changes), timeout=timeout)

    def accepted(self, **changes: Any) -> Any:
        """Return the call of a request that has its place in the queue."""
        call = self.execute(**changes)
        assert next(call).HasField("accepted")
        return call

    def watch(self) -> Any:
        stub = group_pb2_grpc.WorkerGroupStub(self.channel)
        return stub.WatchStatus(group_pb2.WatchStatusRequest(), timeout=WAIT_SECONDS)

    def health(self, service: str = "") -> int:
        request = health_pb2.HealthCheckRequest(service=service)
        return health_pb2_grpc.HealthStub(self.channel).Check(request, timeout=WAIT_SECONDS).status

    def take(self) -> list[AcceptedRequest]:
        """Take the requests of the next batch."""
        images = self.queue.take(WAIT_SECONDS)
        self.queue.batch_ended()
        return list(dict.fromkeys(image.request for image in images))

    def ended(self, code: str) -> float:
        """Return how many requests ended with `code`, once none is in flight."""
        assert self.queue.wait_until_empty(WAIT_SECONDS)
        assert self.metrics.registry.get_sample_value("pixelpod_group_in_flight") == 0
        labels = {"model": "small", "code": code}
        return self.metrics.registry.get_sample_value("pixelpod_group_requests_total", labels) or 0


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Return a function that serves with given settings, READY and warm unless told otherwise."""
    started: list[Served] = []

    def start(ready: bool = True, cold_width: int = 0, **settings: Any) -> Served:
        values = GroupSettings(model=Path("unused"), **{"listen": "127.0.0.1:0", **settings})
        estimates, model = Estimates(), make_model()
        queue = RequestQueue(estimates, values.queue_limit or 8, values.in_flight_limit)
        status = StatusBoard("group-a", model, ranks=1, epoch=1, queue=queue)
        metrics = GroupMetrics(model, queue, status)
        liveness = LivenessFile.create(tmp_path / f"liveness-{len(started)}", 1)
        vitals = Vitals(liveness, values.liveness_timeout_seconds, values.loading_liveness_timeout_seconds)
        endpoint = Endpoint(values, model, queue, status, metrics, estimates, vitals)
        port = endpoint.start()
        address = f"127.0.0.1:{port}"
        served = Served(endpoint, queue, status, metrics, address, grpc.insecure_channel(address), liveness)
        started.append(served)
        for bucket in model.buckets:
            if ready and bucket.width != cold_width:
                status.tell_warm(bucket.width, bucket.height, measured_seconds=0.0, step_seconds=0.0)
        if ready:
            status.enter(group_pb2.GROUP_STATE_READY)
        return served

    yield start
    for served in started:
        served.endpoint.close(Unavailable("the test ends", reason="TEST_ENDS"))
        served.channel.close()


def test_health_and_status_follow_the_state_at_once(serve: Callable[..., Served]) -> None:
    served = serve(ready=False)
    statuses = served.watch()
    assert next(statuses).state == group_pb2.GROUP_STATE_LOADING
    assert served.health() == served.health(SERVICE) == NOT_SERVING
    for state, health in (
        (group_pb2.GROUP_STATE_WARMING, NOT_SERVING),
        (group_pb2.GROUP_STATE_READY, SERVING),
        (group_pb2.GROUP_STATE_DRAINING, NOT_SERVING),
    ):
        changed = time.monotonic()
        served.status.enter(state, "because")
        assert next(status for status in statuses if status.state == state).reason == "because"
        assert time.monotonic() - changed < 0.5
        assert served.health() == served.health(SERVICE) == health


def test_probes_are_answered_without_the_group_itself(serve: Callable[..., Served]) -> None:
    address = free_address()
    serve(probes=address)
    with grpc.insecure_channel(address) as channel:
        for service in ("", SERVICE, LIVE):
            assert health_of(address, service) == SERVING
        with pytest.raises(grpc.RpcError) as raised:
            next(group_pb2_grpc.WorkerGroupStub(channel).WatchStatus(group_pb2.WatchStatusRequest(), timeout=5))
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_liveness_follows_the_ranks_not_the_state(serve: Callable[..., Served]) -> None:
    served = serve(ready=False, liveness_timeout_seconds=0.5)
    wait_until(lambda: served.health(LIVE) == SERVING, WAIT_SECONDS, lambda: "not live while loading")
    served.liveness.write(0, Sign(1, 1, RankState.SERVING))
    served.status.enter(group_pb2.GROUP_STATE_DRAINING)
    wait_until(lambda: served.health() == NOT_SERVING, WAIT_SECONDS, lambda: "ready while draining")
    wait_until(lambda: served.health(LIVE) == NOT_SERVING, WAIT_SECONDS, lambda: "live, though its rank is silent")
    served.liveness.write(0, Sign(1, 2, RankState.SERVING))
    wait_until(lambda: served.health(LIVE) == SERVING, WAIT_SECONDS, lambda: "not live again")


def test_status_comes_at_least_once_a_second(serve: Callable[..., Served]) -> None:
    statuses = serve().watch()
    next(statuses)
    started = time.monotonic()
    next(statuses)
    next(statuses)
    assert time.monotonic() - started < 3


def test_a_bucket_that_is_not_warm_is_refused_alone(serve: Callable[..., Served]) -> None:
    served = serve(cold_width=128)
    with pytest.raises(grpc.RpcError) as refusal:
        next(served.execute(width=128))
    assert refusal.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "128x64 is not served by this group" in refusal.value.details()
    served.accepted(width=64).cancel()


def test_a_request_and_its_events(serve: Callable[..., Served]) -> None:
    served = serve()
    call = served.execute(seeds=[1, 2])
    (request,) = served.take()
    assert request.message == make_request(seeds=[1, 2])
    accepted = next(call).accepted
    assert (accepted.request_id, accepted.position) == ("r-1", 0)
    request.post_progress(1, 10)
    assert next(call).progress.step == 1
    request.post_image(0, b"one")
    request.post_image(1, b"two")
    request.end(images_pb2.GenerateResponse(request_id="r-1"))
    rest = events_of(call)
    assert [event.image_chunk.data for event in rest[:-1]] == [b"one", b"two"]
    assert rest[-1].done.request_id == "r-1"
    assert served.ended("OK") == 1


def test_a_caller_that_does_not_read_blocks_nobody(serve: Callable[..., Served]) -> None:
    served = serve()
    file = os.urandom(8 * CHUNK_BYTES)
    slow = served.execute()
    (request,) = served.take()
    started = time.monotonic()
    for step in range(50):
        request.post_progress(step, 50)
    request.post_image(0, file)
    request.end(images_pb2.GenerateResponse())
    assert time.monotonic() - started < 0.5

    quick = served.execute()
    served.take()[0].end(images_pb2.GenerateResponse(request_id="quick"))
    assert [event.WhichOneof("event") for event in events_of(quick)] == ["accepted", "done"]
    assert served.health() == SERVING

    assert b"".join(event.image_chunk.data for event in events_of(slow)) == file
    assert served.ended("OK") == 2


def test_an_error_is_the_status_of_its_call_alone(serve: Callable[..., Served]) -> None:
    served = serve()
    failing, other = served.accepted(), served.accepted()
    first, second = served.take()
    first.end(ComputationFailed("not finite", reason="NOT_FINITE"))
    with pytest.raises(grpc.RpcError) as failure:
        list(failing)
    assert (failure.value.code(), from_call(failure.value).reason) == (grpc.StatusCode.INTERNAL, "NOT_FINITE")
    second.end(images_pb2.GenerateResponse())
    assert list(other)[-1].HasField("done")
    assert (served.ended("INTERNAL"), served.ended("OK")) == (1, 1)


def test_a_cancelled_call_is_not_wanted_and_leaves(serve: Callable[..., Served]) -> None:
    served = serve()
    computing, waiting = served.accepted(), served.accepted(steps=7)
    (request,) = served.take()
    assert (request.wanted, served.queue.load().in_flight) == (True, 2)
    computing.cancel()
    waiting.cancel()
    assert served.ended("CANCELLED") == 2
    assert not request.wanted
    assert served.queue.take(0) == []


def test_deadlines_of_the_caller_and_of_the_group(serve: Callable[..., Served]) -> None:
    served = serve(max_request_seconds=0.5)
    for timeout in (0.2, None):
        started = time.monotonic()
        with pytest.raises(grpc.RpcError) as failure:
            list(served.execute(timeout=timeout))
        assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert time.monotonic() - started < (timeout or 0.5) + 1
    assert served.ended("DEADLINE_EXCEEDED") == 2


def test_a_full_queue_refuses(serve: Callable[..., Served]) -> None:
    served = serve(queue_limit=1)
    waiting = served.execute()
    assert next(waiting).accepted.position == 0
    with pytest.raises(grpc.RpcError) as failure:
        list(served.execute())
    assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert from_call(failure.value).retry_after_seconds > 0
    waiting.cancel()
    assert served.ended("RESOURCE_EXHAUSTED") == 1


@pytest.fixture
def stop_signal() -> Iterator[signal.Signals]:
    handler = signal.getsignal(signal.SIGUSR1)
    yield signal.SIGUSR1
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGUSR1, handler)


def _signal_and_time_not_serving(served: Served, stop_signal: signal.Signals) -> float:
    os.kill(os.getpid(), stop_signal)
    until = time.monotonic() + WAIT_SECONDS
    while served.health() != NOT_SERVING:
        assert time.monotonic() < until
    return time.monotonic()


def test_a_signal_drains_also_while_the_main_thread_computes(
    serve: Callable[..., Served], stop_signal: signal.Signals
) -> None:
    served = serve(drain_seconds=8.0)
    served.endpoint.drain_on(stop_signal)
    finishes, hangs = served.accepted(), served.accepted()
    first, _ = served.take()
    with ThreadPoolExecutor() as pool:
        signalled = pool.submit(_signal_and_time_not_serving, served, stop_signal)
        # Seconds within one instruction of this thread: no Python signal handler can run.
        hashlib.pbkdf2_hmac("sha256", b"password", b"salt", iterations=2_000_000)
        computed = time.monotonic()
        assert signalled.result(WAIT_SECONDS) < computed
    assert next(served.watch()).state == group_pb2.GROUP_STATE_DRAINING
    with pytest.raises(grpc.RpcError) as refusal:
        list(served.execute())
    assert from_call(refusal.value).reason == "GROUP_NOT_READY"

    first.end(images_pb2.GenerateResponse())
    assert list(finishes)[-1].HasField("done")
    started = time.monotonic()
    closing = threading.Thread(target=served.endpoint.close)
    closing.start()
    with pytest.raises(grpc.RpcError) as failure:
        list(hangs)
    assert (failure.value.code(), from_call(failure.value).reason) == (grpc.StatusCode.UNAVAILABLE, "GROUP_DRAINING")
    closing.join(WAIT_SECONDS)
    assert time.monotonic() - started < 10
    assert (served.ended("OK"), served.ended("UNAVAILABLE")) == (1, 2)


def test_closing_with_an_error_ends_all_calls_with_it(serve: Callable[..., Served]) -> None:
    served = serve()
    calls, statuses = [served.accepted(), served.accepted()], served.watch()
    next(statuses)
    started = time.monotonic()
    served.endpoint.close(Unavailable("a rank failed", reason="WORLD_BROKEN"))
    assert time.monotonic() - started < 3
    for call in calls:
        with pytest.raises(grpc.RpcError) as failure:
            list(call)
        assert from_call(failure.value).reason == "WORLD_BROKEN"
    assert all(status.group == "group-a" for status in statuses)
    assert served.ended("UNAVAILABLE") == 2


def test_an_address_in_use_is_refused(serve: Callable[..., Served]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(AddressInUse, match=str(port)):
            serve(listen=f"127.0.0.1:{port}")


def _ending(call: Any) -> str:
    with pytest.raises(grpc.RpcError) as refused:
        next(call)
    error = from_call(refused.value)
    return f"{refused.value.code().name} {error.reason}"


def test_frontends_need_a_token_for_the_model(serve: Callable[..., Served], tmp_path: Path) -> None:
    tokens = (entry("a", "a-token", models=["small"]), entry("b", "b-token", models=["other"]))
    served = serve(tokens_file=write_tokens(tmp_path / "tokens.json", *tokens))
    stub = group_pb2_grpc.WorkerGroupStub(served.channel)

    def execute(*metadata: tuple[str, str]) -> Any:
        return stub.Execute(make_request(), metadata=metadata, timeout=WAIT_SECONDS)

    assert _ending(execute()) == "UNAUTHENTICATED TOKEN_MISSING"
    assert _ending(execute(*bearer("c-token"))) == "UNAUTHENTICATED TOKEN_UNKNOWN"
    assert _ending(execute(*bearer("b-token"))) == "PERMISSION_DENIED MODEL_NOT_ALLOWED"
    assert _ending(served.watch()) == "UNAUTHENTICATED TOKEN_MISSING"
    wait_until(lambda: served.health() == SERVING, WAIT_SECONDS, lambda: "not serving, or not telling it to anybody")
    call = execute(*bearer("a-token"))
    assert next(call).HasField("accepted")
    call.cancel()
    assert served.ended("PERMISSION_DENIED") == 1


def test_health_can_need_a_token_too(serve: Callable[..., Served], tmp_path: Path) -> None:
    tokens_file = write_tokens(tmp_path / "tokens.json", entry("a", "a-token"))
    served = serve(tokens_file=tokens_file, health_needs_token=True)
    with pytest.raises(grpc.RpcError) as refused:
        served.health()
    assert from_call(refused.value).reason == "TOKEN_MISSING"


def test_the_endpoint_speaks_tls(serve: Callable[..., Served], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue()
    served = serve(tls_cert_file=pair.cert_file, tls_key_file=pair.key_file)
    assert _ending(served.watch()) == "UNAVAILABLE UNAVAILABLE"
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes())
    with grpc.secure_channel(served.address, credentials) as channel:
        served.channel = channel
        assert served.health() == SERVING


def test_limits_of_callers_are_not_for_groups(serve: Callable[..., Served], tmp_path: Path) -> None:
    tokens_file = write_tokens(tmp_path / "tokens.json", entry("a", "a-token", max_concurrent_requests=1))
    with pytest.raises(FileRefused, match="for frontends"):
        serve(tokens_file=tokens_file)


def test_plain_text_beyond_loopback_is_refused(serve: Callable[..., Served]) -> None:
    with pytest.raises(PlainTextRefused, match="is not loopback"):
        serve(listen="0.0.0.0:0")
