from __future__ import annotations

import time

import pytest

from pixelpod.server.errors import ComputationFailed, DeadlinePassed, Unavailable
from pixelpod.server.events import CHUNK_BYTES, encode
from pixelpod.v1 import images_pb2
from tests.workers.models import accept
from workers.request import AcceptedRequest


def accepted(seconds: float = 60.0) -> AcceptedRequest:
    return accept(seconds=seconds)


async def test_a_slow_reader_gets_the_newest_progress_and_every_byte() -> None:
    request = accepted()
    files = [bytes(range(256)) * 9000, b"x" * CHUNK_BYTES, b"y"]
    for step in range(1, 51):
        request.post_progress(step, 50)
    for index, data in enumerate(files):
        request.post_image(index, data)
    request.end(images_pb2.GenerateResponse(request_id="r-1"))

    events = [images_pb2.GenerateEvent.FromString(encode(event)) async for event in request.events()]
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
    events = request.events()
    for step in range(1, 5):
        request.seconds_left = 4.0 - step
        request.post_progress(step, 4)
        steps.append((await anext(events)).progress)
    assert [(progress.step, progress.steps, progress.seconds_left) for progress in steps] == [
        (1, 4, 3.0),
        (2, 4, 2.0),
        (3, 4, 1.0),
        (4, 4, 0.0),
    ]


async def test_only_the_first_ending_counts() -> None:
    request = accepted()
    request.end(ComputationFailed("first", reason="NOT_FINITE"))
    request.end(Unavailable("second", reason="GROUP_DRAINING"))
    request.end(images_pb2.GenerateResponse())
    with pytest.raises(ComputationFailed, match="first"):
        await anext(request.events())


async def test_it_ends_at_its_deadline_if_nothing_comes() -> None:
    request, started = accepted(seconds=0.2), time.monotonic()
    assert request.wanted
    with pytest.raises(DeadlinePassed):
        await anext(request.events())
    assert 0.2 <= time.monotonic() - started < 1
    assert not request.wanted


async def test_abandoned_it_is_not_wanted() -> None:
    request = accepted()
    request.abandon()
    assert not request.wanted
