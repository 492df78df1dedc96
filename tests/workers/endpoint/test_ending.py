"""How an endpoint ends: drained by a signal, or closed with an error."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from pixelpod.server.errors import Unavailable, from_call
from pixelpod.v1 import group_pb2, images_pb2
from tests.e2e.processes import NOT_SERVING
from tests.workers.endpoint.served import WAIT_SECONDS, Served


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
    served = serve(drain_seconds=4.0)
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
