"""A request whose caller waits for the whole answer."""

from __future__ import annotations

import asyncio
import time

import pytest

from pixelpod.server.errors import AnswerTooLarge, ComputationFailed, DeadlinePassed
from pixelpod.v1 import group_pb2, images_pb2
from tests.workers.models import accept_as, make_request
from workers.whole_request import WholeRequest

FILES = [b"one" * 100, b"two"]


def accepted(limit_bytes: int = 0, seconds: float = 60.0) -> WholeRequest:
    message = group_pb2.ExecuteRequest(answer_limit_bytes=limit_bytes)
    message.MergeFrom(make_request(seeds=[1, 2]))
    return accept_as(WholeRequest, message, seconds=seconds)


def post_all(request: WholeRequest) -> None:
    request.post_progress(1, 2)
    for index, file in enumerate(FILES):
        request.post_image(index, file)
    images = [images_pb2.Image(index=index, size_bytes=len(file)) for index, file in enumerate(FILES)]
    request.end(images_pb2.GenerateResponse(request_id="r-1", images=images))


async def test_the_answer_has_all_images() -> None:
    request = accepted()
    answer = asyncio.create_task(request.answer())
    await asyncio.sleep(0)
    post_all(request)
    response = images_pb2.GenerateResponse.FromString(await answer)
    assert response.request_id == "r-1"
    assert [(image.index, image.data) for image in response.images] == list(enumerate(FILES))


async def test_an_answer_over_the_callers_limit_says_so() -> None:
    request = accepted(limit_bytes=303)
    post_all(request)
    with pytest.raises(AnswerTooLarge, match="over the limit of 303"):
        await request.answer()


async def test_an_error_ends_it() -> None:
    request = accepted()
    request.end(ComputationFailed("first", reason="NOT_FINITE"))
    post_all(request)
    with pytest.raises(ComputationFailed, match="first"):
        await request.answer()


async def test_it_ends_at_its_deadline() -> None:
    request, started = accepted(seconds=0.2), time.monotonic()
    with pytest.raises(DeadlinePassed):
        await request.answer()
    assert 0.2 <= time.monotonic() - started < 1
    assert not request.wanted
