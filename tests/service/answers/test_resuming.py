"""A caller that has a part of an answer already gets the rest alone, if it is of the same answer."""

from __future__ import annotations

import pytest

from pixelpod.server.errors import InvalidRequest
from pixelpod.v1 import images_pb2
from tests.service.answers.plane import CHUNKS


@pytest.mark.parametrize(
    ("point", "first_lacking"),
    [
        ((0, 0), 0),
        ((0, 10), 1),
        ((0, 20), 2),
        ((1, 0), 2),
        ((1, 10), 3),
        ((1, 20), len(CHUNKS)),
        ((-1, 0), 0),
    ],
    ids=str,
)
async def test_chunks_before_the_resume_point_are_left_out(
    plane, call, point: tuple[int, int], first_lacking: int
) -> None:
    plane.go_on()
    first = call()
    await first.whole()
    index, offset = point
    resume_from = images_pb2.ResumePoint(answer_id=first.answer_id, index=index, offset=offset)
    second = call(resume_from=resume_from)
    await second.whole()
    assert second.chunks == CHUNKS[first_lacking:]
    assert second.kinds[-1] == "done"


async def test_point_of_another_answer_skips_nothing(plane, call) -> None:
    plane.go_on()
    second = call(resume_from=images_pb2.ResumePoint(answer_id="of a frontend that is gone", index=1))
    await second.whole()
    assert second.chunks == CHUNKS


async def test_resume_point_needs_an_id(plane, call) -> None:
    error = await call(request_id="", resume_from=images_pb2.ResumePoint(answer_id="a")).error()
    assert isinstance(error, InvalidRequest)
    assert error.field == "resume_from"
    assert not plane.records
