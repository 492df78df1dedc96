"""A request whose caller follows it: events as they come, and one ending."""

from __future__ import annotations

import asyncio
import time

import pytest

from pixelpod.server.errors import ComputationFailed, DeadlinePassed, Unavailable
from pixelpod.server.events import CHUNK_BYTES
from pixelpod.v1 import group_pb2, images_pb2
from tests.events import events_of
from tests.workers.models import accept
from workers.streamed_request import StreamedRequest


def accepted(seconds: float = 60.0) -> StreamedRequest:
    return accept(seconds=seconds)


async def test_a_slow_reader_gets_the_newest_progress_and_every_byte() -> None:
    request = accepted()
    files = [bytes(range(256)) * 9000, b"x" * CHUNK_BYTES, b"y"]
    for step in range(1, 51):
        request.post_progress(step, 50)
    for index, data in enumerate(files):
        request.post_image(index, data)
    request.end(images_pb2.GenerateResponse(request_id="r-1"))

    events = events_of([message async for message in request.messages()])
    assert [event.progress.step for event in events if event.HasField("progress")] == [50]
    received = [b"", b"", b""]
    for event in events[1:-1]:
        chunk = event.image_chunk
        assert chunk.offset == len(received[chunk.index])
        assert len(chunk.data) <= CHUNK_BYTES
        received[chunk.index] += chunk.data
    assert received == files
    assert events[-1].done.request_id == "r-1"


async def test_a_reader_in_time_sees_every_step() -> None:
    request, steps = accepted(), []
    messages = request.messages()
    for step in range(1, 5):
        request.seconds_left = 4.0 - step
        request.post_progress(step, 4)
        steps.append(group_pb2.ExecuteEvents.FromString(await anext(messages)).progress)
    assert [(progress.step, progress.steps, progress.seconds_left) for progress in steps] == [
        (1, 4, 3.0),
        (2, 4, 2.0),
        (3, 4, 1.0),
        (4, 4, 0.0),
    ]


async def test_news_of_one_moment_travel_together() -> None:
    request = accepted()
    messages = request.messages()
    for step in range(1, 4):
        request.post_progress(step, 3)
    request.post_image(0, b"one")
    request.post_image(1, b"two")
    request.end(images_pb2.GenerateResponse(request_id="r-1"))
    (message,) = [message async for message in messages]
    events = group_pb2.ExecuteEvents.FromString(message)
    assert events.progress.step == 3
    assert [(chunk.index, chunk.data) for chunk in events.image_chunk] == [(0, b"one"), (1, b"two")]
    assert events.done.request_id == "r-1"


async def test_news_that_nothing_follows_do_not_wait() -> None:
    request = accepted()
    messages = request.messages()
    request.post_progress(1, 3)
    alone = group_pb2.ExecuteEvents.FromString(await asyncio.wait_for(anext(messages), 1))
    assert [field.name for field, _ in alone.ListFields()] == ["progress"]
    request.post_image(0, b"one")
    image = group_pb2.ExecuteEvents.FromString(await asyncio.wait_for(anext(messages), 1))
    assert [field.name for field, _ in image.ListFields()] == ["image_chunk"]


async def test_an_ending_that_comes_while_an_image_is_sent_is_not_lost() -> None:
    request = accepted()
    messages = request.messages()
    request.post_image(0, b"one")
    (image,) = events_of([await anext(messages)])
    request.end(images_pb2.GenerateResponse(request_id="r-1"))
    await asyncio.sleep(0)  # it arrives while the image is on its way
    (done,) = events_of([message async for message in messages])
    assert (image.image_chunk.data, done.done.request_id) == (b"one", "r-1")


async def test_only_the_first_ending_counts() -> None:
    request = accepted()
    request.end(ComputationFailed("first", reason="NOT_FINITE"))
    request.end(Unavailable("second", reason="GROUP_DRAINING"))
    request.end(images_pb2.GenerateResponse())
    with pytest.raises(ComputationFailed, match="first"):
        await anext(request.messages())


async def test_it_ends_at_its_deadline_if_nothing_comes() -> None:
    request, started = accepted(seconds=0.2), time.monotonic()
    assert request.wanted
    with pytest.raises(DeadlinePassed):
        await anext(request.messages())
    assert 0.2 <= time.monotonic() - started < 1
    assert not request.wanted


async def test_abandoned_it_is_not_wanted() -> None:
    request = accepted()
    request.abandon()
    assert not request.wanted
