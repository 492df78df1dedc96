"""Requests and their events: each is apart, and none waits for a caller that does not read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import grpc
import pytest

from pixelpod.server.errors import ComputationFailed, from_call
from pixelpod.server.events import CHUNK_BYTES
from pixelpod.v1 import group_pb2_grpc, images_pb2
from tests.e2e.processes import SERVING
from tests.events import events_of
from tests.workers.endpoint.served import WAIT_SECONDS, Served
from tests.workers.models import make_request


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
    assert [event.WhichOneof("event") for event in events_of(quick)] == ["done"]
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
    waiting = served.accepted()
    with pytest.raises(grpc.RpcError) as failure:
        list(served.execute())
    assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert from_call(failure.value).retry_after_seconds > 0
    waiting.cancel()
    assert served.ended("RESOURCE_EXHAUSTED") == 1


def test_the_whole_answer_at_once(serve: Callable[..., Served]) -> None:
    served = serve()
    stub = group_pb2_grpc.WorkerGroupStub(served.channel)
    call = stub.Execute.future(make_request(), timeout=WAIT_SECONDS)
    (request,) = served.take()
    request.post_progress(1, 10)
    request.post_image(0, b"one")
    request.end(images_pb2.GenerateResponse(request_id="r-1", images=[images_pb2.Image(seed=3)]))
    answer = call.result(WAIT_SECONDS)
    assert (answer.request_id, answer.images[0].seed, answer.images[0].data) == ("r-1", 3, b"one")
    assert served.ended("OK") == 1


def test_a_whole_answer_that_nobody_waits_for_leaves(serve: Callable[..., Served]) -> None:
    served = serve()
    call = group_pb2_grpc.WorkerGroupStub(served.channel).Execute.future(make_request(), timeout=WAIT_SECONDS)
    (request,) = served.take()
    call.cancel()
    assert served.ended("CANCELLED") == 1
    assert not request.wanted


def test_the_status_tells_who_waits_and_who_computes(serve: Callable[..., Served]) -> None:
    served = serve()
    statuses = served.watch()

    def told(waiting: list[str], computing: list[str]) -> bool:
        return any((list(status.waiting), list(status.computing)) == (waiting, computing) for status in statuses)

    assert told([], [])
    first = served.accepted()
    assert told([], ["r-1"]), "a free device begins with it at once"
    served.queue.take(WAIT_SECONDS)
    second = served.accepted(steps=7)
    assert told(["r-1"], ["r-1"])
    served.queue.batch_ended()
    served.queue.take(WAIT_SECONDS)
    assert told([], ["r-1", "r-1"]), "one is on its way, the other computes"
    for call in (first, second):
        call.cancel()
    assert told([], [])
