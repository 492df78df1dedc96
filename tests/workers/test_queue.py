from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from pixelpod.server.errors import DeadlinePassed, Overloaded, Unavailable
from pixelpod.v1 import group_pb2
from tests.workers.models import accept, make_queue, make_request
from workers.estimates import Estimates
from workers.queue import Load, RequestQueue
from workers.request import AcceptedRequest, RequestedImage

# What is posted to a request waits in its loop, which these tests run when they look.


def other(**changes: Any) -> AcceptedRequest:
    """Return a request of another key than `accept()`'s."""
    return accept(make_request(steps=7, **changes))


def named(request_id: str, **changes: Any) -> group_pb2.ExecuteRequest:
    message = make_request(**changes)
    message.request_id = request_id
    return message


def large(images: int = 1) -> AcceptedRequest:
    """Return a request for the larger bucket, whose batches hold 2 images."""
    return accept(make_request(width=128, seeds=list(range(images))))


def requests_of(images: list[RequestedImage]) -> list[AcceptedRequest]:
    return [image.request for image in images]


def take(queue: RequestQueue) -> list[RequestedImage]:
    """Take a batch and say at once that it was computed."""
    images = queue.take(0)
    queue.batch_ended()
    return images


def fill(queue: RequestQueue, *requests: AcceptedRequest) -> None:
    for request in requests:
        queue.put(request)


async def test_up_to_the_limits() -> None:
    estimates = Estimates()
    estimates.observe(group_pb2.RunBatch(width=64, height=64, batch_size=1), step_seconds=0.2, beside_seconds=0.0)
    queue = RequestQueue(estimates, queue_limit=2, in_flight_limit=3)
    first, second, refused, third = accept(), accept(), accept(), other()
    assert queue.load() == Load(waiting=0, in_flight=0, free_slots=2, backlog_seconds=0)
    queue.put(first)
    assert queue.load() == Load(waiting=1, in_flight=1, free_slots=1, backlog_seconds=2)
    queue.put(second)
    with pytest.raises(Overloaded, match="queue_limit 2") as refusal:
        queue.put(refused)
    assert refusal.value.reason == "QUEUE_FULL"
    assert refusal.value.retry_after_seconds == pytest.approx(2.0), "a batch of 2 takes 4 s"

    assert requests_of(queue.take(0)) == [first, second]
    first.batch_seconds_left = second.batch_seconds_left = 1.5
    queue.put(third)
    # One more could wait, but as many as may be in flight are.
    assert queue.load() == Load(waiting=1, in_flight=3, free_slots=0, backlog_seconds=pytest.approx(2.9))
    with pytest.raises(Overloaded, match="in_flight_limit 3"):
        queue.put(refused)
    queue.leave(first)
    assert queue.load().free_slots == 1


async def test_computed_requests_are_no_backlog() -> None:
    queue = make_queue(2, 3)
    fill(queue, accept())
    take(queue)
    assert queue.load() == Load(waiting=0, in_flight=1, free_slots=2, backlog_seconds=0)


async def test_who_waits_behind_others_is_told_apart() -> None:
    queue = make_queue()
    names = ("first", "mate", "apart", "late")
    first, mate, apart, late = (accept(named(name, steps=10 if name != "apart" else 7)) for name in names)
    fill(queue, first, mate, apart)
    assert queue.ids() == (["apart"], ["first", "mate"]), "a free device begins with the first ones at once"
    queue.take(0)
    fill(queue, late)
    assert queue.ids() == (["apart", "late"], ["first", "mate"])
    queue.batch_ended()
    assert queue.ids() == (["late"], ["first", "mate", "apart"]), "what is computed is still on its way"
    for request in (first, mate, apart, late):
        queue.leave(request)
    assert queue.ids() == ([], [])


async def test_a_request_between_two_of_its_batches_does_not_wait_behind_others() -> None:
    queue = make_queue()
    many, other_one = accept(named("many", seeds=list(range(6)))), accept(named("other", steps=7))
    fill(queue, many, other_one)
    take(queue)
    assert queue.ids() == (["other"], ["many"])


async def test_images_of_one_key_are_computed_together_up_to_the_largest_batch() -> None:
    queue = make_queue()
    one, apart, three, two = (
        accept(),
        other(),
        accept(make_request(seeds=[1, 2, 3])),
        accept(make_request(seeds=[4, 5])),
    )
    fill(queue, one, apart, three, two)
    assert [(image.request, image.index) for image in take(queue)] == [(one, 0), (three, 0), (three, 1), (three, 2)]
    assert requests_of(take(queue)) == [apart], "it is the oldest now"
    assert [(image.request, image.index) for image in take(queue)] == [(two, 0), (two, 1)]
    assert take(queue) == []


async def test_a_request_of_many_images_keeps_its_place_until_all_are_taken() -> None:
    queue = make_queue()
    many, late = accept(make_request(seeds=list(range(6)))), accept()
    fill(queue, many, late)
    assert [image.index for image in take(queue)] == [0, 1, 2, 3]
    assert queue.load().waiting == 2
    assert [(image.request, image.index) for image in take(queue)] == [(many, 4), (many, 5), (late, 0)]


async def test_room_is_counted_in_images_and_a_request_is_taken_whole() -> None:
    queue = make_queue(queue_limit=3)
    fill(queue, accept(), accept(make_request(seeds=[1, 2, 3])))
    assert queue.load().free_slots == 0
    with pytest.raises(Overloaded, match="4 images wait"):
        queue.put(accept())
    assert len(take(queue)) == 4
    assert queue.load().free_slots == 3


async def test_a_request_that_shall_be_alone_has_no_mates() -> None:
    queue = make_queue()
    suspect = make_request()
    suspect.alone = True
    alone, first, second = accept(suspect), accept(), accept()
    fill(queue, first, alone, second)
    assert requests_of(take(queue)) == [first, second]
    assert requests_of(take(queue)) == [alone]


async def test_a_small_request_waits_for_those_before_it_and_no_longer() -> None:
    queue = make_queue(queue_limit=40, in_flight_limit=40)
    before, small, after = [large() for _ in range(20)], accept(), [large() for _ in range(10)]
    fill(queue, *before, small, *after)
    batches = []
    while small not in (batch := requests_of(take(queue))):
        batches.append(batch)
    assert [request for batch in batches for request in batch] == before
    assert len(batches) == 10, "of two each"


async def test_younger_requests_fill_up_a_batch_but_do_not_come_first() -> None:
    queue = make_queue()
    oldest, passed, mate = large(), accept(), large()
    fill(queue, oldest, passed, mate, large())
    assert requests_of(take(queue)) == [oldest, mate]
    assert requests_of(take(queue)) == [passed]


async def test_what_nobody_waits_for_never_starts() -> None:
    queue = make_queue()
    cancelled, expired, wanted = accept(), accept(seconds=0.0), accept()
    fill(queue, cancelled, expired, wanted)
    cancelled.abandon()
    assert requests_of(take(queue)) == [wanted]
    with pytest.raises(DeadlinePassed):
        await anext(expired.messages())


async def test_what_can_no_longer_be_done_in_time_never_starts() -> None:
    estimates = Estimates()
    estimates.observe(group_pb2.RunBatch(width=64, height=64, batch_size=1), step_seconds=1.0, beside_seconds=0.0)
    queue = RequestQueue(estimates, queue_limit=8, in_flight_limit=8)
    too_late, in_time = accept(seconds=6.5), accept(seconds=9.0)  # ten steps
    fill(queue, too_late, in_time)
    assert requests_of(take(queue)) == [in_time]
    with pytest.raises(DeadlinePassed, match="too little of its time") as failure:
        await anext(too_late.messages())
    assert failure.value.reason == "DEADLINE_UNREACHABLE"


async def test_the_rest_of_an_abandoned_request_never_starts() -> None:
    queue, request = make_queue(), accept(make_request(seeds=list(range(6))))
    fill(queue, request)
    assert len(take(queue)) == 4
    request.abandon()
    assert take(queue) == []
    assert queue.load().waiting == 0


async def test_a_request_that_left_is_forgotten() -> None:
    queue, request = make_queue(8, 8), accept()
    fill(queue, request)
    queue.leave(request)
    assert queue.load() == Load(0, 0, free_slots=8, backlog_seconds=0)
    assert take(queue) == []


async def test_take_waits_for_a_request_for_the_timeout_or_until_closed() -> None:
    queue, request = make_queue(), accept()
    started = time.monotonic()
    assert queue.take(0.1) == []
    assert 0.1 <= time.monotonic() - started < 1

    threading.Timer(0.05, queue.put, [request]).start()
    assert requests_of(queue.take(10)) == [request]

    threading.Timer(0.05, queue.close).start()
    assert queue.take(10) == []
    assert time.monotonic() - started < 5


async def test_mates_are_waited_for_while_the_window_is_open() -> None:
    queue = make_queue(window_seconds=5.0)
    fill(queue, accept(), accept())
    take(queue)
    # Both callers are about to send again.
    first, second = accept(), accept()
    fill(queue, first)
    threading.Timer(0.1, queue.put, [second]).start()
    started = time.monotonic()
    assert requests_of(queue.take(0)) == [first, second]
    assert time.monotonic() - started < 4


async def test_a_full_batch_and_a_closed_queue_wait_for_nobody() -> None:
    queue, started = make_queue(window_seconds=60.0), time.monotonic()
    for _ in range(2):  # after the first, a batch that is not full would wait
        fill(queue, *(accept() for _ in range(4)))
        assert len(take(queue)) == 4
    fill(queue, accept())
    queue.close()
    assert len(take(queue)) == 1
    assert time.monotonic() - started < 30


async def test_closed_it_accepts_nothing_but_gives_what_it_has() -> None:
    queue, request = make_queue(), accept()
    fill(queue, request)
    queue.close()
    with pytest.raises(Unavailable) as refusal:
        queue.put(accept())
    assert refusal.value.reason == "GROUP_DRAINING"
    assert queue.load().free_slots == 0
    assert requests_of(queue.take(10)) == [request]
    assert queue.take(10) == []


async def test_end_all_ends_what_waits_and_what_computes() -> None:
    queue, requests = make_queue(), [accept(), other()]
    fill(queue, *requests)
    queue.take(0)
    queue.end_all(Unavailable("broken", reason="WORLD_BROKEN"))
    for request in requests:
        assert not request.wanted
        with pytest.raises(Unavailable, match="broken"):
            await anext(request.messages())
    assert not queue.wait_until_empty(0)
    for request in requests:
        queue.leave(request)
    assert queue.wait_until_empty(0)


async def test_every_change_is_told() -> None:
    changes: list[int] = []
    queue, request = make_queue(), accept()
    queue.on_change(lambda: changes.append(queue.load().in_flight))
    queue.put(request)
    queue.take(0)
    queue.batch_ended()
    queue.leave(request)
    queue.close()
    assert changes == [1, 1, 1, 0, 0]
