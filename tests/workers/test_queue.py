from __future__ import annotations

import asyncio
import threading
import time

import pytest

from pixelpod.server.errors import DeadlinePassed, Overloaded, Unavailable
from tests.workers.models import make_request
from workers.queue import Load, RequestQueue
from workers.request import AcceptedRequest

# What is posted to a request waits in its loop, which these tests run when they look.


def accepted(seconds: float = 60.0, predicted_seconds: float = 2.0) -> AcceptedRequest:
    deadline = time.monotonic() + seconds
    return AcceptedRequest(make_request(), [], deadline, predicted_seconds, asyncio.get_running_loop())


async def test_first_come_first_served_up_to_the_limits() -> None:
    queue = RequestQueue(queue_limit=2, in_flight_limit=3)
    requests = [accepted() for _ in range(4)]
    assert queue.put(requests[0]) == Load(0, 0, 0, free_slots=2, backlog_seconds=0)
    assert queue.put(requests[1]) == Load(waiting=1, ahead=1, in_flight=1, free_slots=1, backlog_seconds=2)
    with pytest.raises(Overloaded, match="queue_limit 2") as refusal:
        queue.put(requests[2])
    assert refusal.value.reason == "QUEUE_FULL"
    assert refusal.value.retry_after_seconds == pytest.approx(2.0)

    assert queue.take(0) is requests[0]
    queue.put(requests[2])
    assert queue.take(0) is requests[1]
    # One could wait, but as many as may be in flight are.
    assert queue.load() == Load(waiting=1, ahead=3, in_flight=3, free_slots=0, backlog_seconds=6)
    with pytest.raises(Overloaded, match="in_flight_limit 3"):
        queue.put(requests[3])
    queue.leave(requests[0])
    assert queue.load().free_slots == 1


async def test_computed_requests_are_no_backlog() -> None:
    queue, request = RequestQueue(2, 3), accepted()
    queue.put(request)
    queue.take(0)
    request.seconds_left = 0.0
    assert queue.load() == Load(waiting=0, ahead=0, in_flight=1, free_slots=2, backlog_seconds=0)


async def test_what_nobody_waits_for_never_starts() -> None:
    queue = RequestQueue(8, 8)
    cancelled, expired, wanted = accepted(), accepted(seconds=0.0), accepted()
    for request in (cancelled, expired, wanted):
        queue.put(request)
    cancelled.abandon()
    assert queue.load().backlog_seconds == 2
    assert queue.take(0) is wanted
    with pytest.raises(DeadlinePassed):
        await anext(expired.events())


async def test_a_request_that_left_is_forgotten() -> None:
    queue, request = RequestQueue(8, 8), accepted()
    queue.put(request)
    queue.leave(request)
    assert queue.load() == Load(0, 0, 0, free_slots=8, backlog_seconds=0)
    assert queue.take(0) is None


async def test_take_waits_for_a_request_for_the_timeout_or_until_closed() -> None:
    queue, request = RequestQueue(8, 8), accepted()
    started = time.monotonic()
    assert queue.take(0.1) is None
    assert 0.1 <= time.monotonic() - started < 1

    threading.Timer(0.05, queue.put, [request]).start()
    assert queue.take(10) is request

    threading.Timer(0.05, queue.close).start()
    assert queue.take(10) is None
    assert time.monotonic() - started < 5


async def test_closed_it_accepts_nothing_but_gives_what_it_has() -> None:
    queue, request = RequestQueue(8, 8), accepted()
    queue.put(request)
    queue.close()
    with pytest.raises(Unavailable) as refusal:
        queue.put(accepted())
    assert refusal.value.reason == "GROUP_DRAINING"
    assert queue.load().free_slots == 0
    assert queue.take(10) is request
    assert queue.take(10) is None


async def test_end_all_ends_what_waits_and_what_computes() -> None:
    queue, requests = RequestQueue(8, 8), [accepted(), accepted()]
    for request in requests:
        queue.put(request)
    queue.take(0)
    queue.end_all(Unavailable("broken", reason="WORLD_BROKEN"))
    for request in requests:
        assert not request.wanted
        with pytest.raises(Unavailable, match="broken"):
            await anext(request.events())
    assert not queue.wait_until_empty(0)
    for request in requests:
        queue.leave(request)
    assert queue.wait_until_empty(0)


async def test_every_change_is_told() -> None:
    changes: list[int] = []
    queue, request = RequestQueue(8, 8), accepted()
    queue.on_change(lambda: changes.append(queue.load().in_flight))
    queue.put(request)
    queue.take(0)
    queue.leave(request)
    queue.close()
    assert changes == [1, 1, 0, 0]
