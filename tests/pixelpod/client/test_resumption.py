"""A stream that breaks after it began is taken up again: same id, from where it broke, a few times, in time."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from pixelpod.client import Accepted, Client, DeadlineError, Done, Progress, ServerError, UnavailableError
from pixelpod.client.assembly import Assembly
from pixelpod.client.resumption import MOST_RESUMPTIONS, Resumption
from pixelpod.server.errors import ComputationFailed, Unavailable
from pixelpod.v1 import images_pb2
from tests.pixelpod.client.conftest import Caller
from tests.pixelpod.stub_server import CHUNK_BYTES, Script, StubServer, accepted, chunks, closing, progress

FILES = [bytes([number]) * (CHUNK_BYTES + 1) for number in (1, 2)]
"""Two chunks each."""
OTHER_FILES = [bytes([number]) * (CHUNK_BYTES + 1) for number in (3, 4)]
BROKEN = Unavailable("the connection broke", reason="GROUP_LOST", retry_after_seconds=0.01)


def all_chunks(files: Sequence[bytes]) -> list[images_pb2.GenerateEvent]:
    return [chunk for index, file in enumerate(files) for chunk in chunks(index, file)]


def answers(*calls: tuple[str, Sequence[bytes], int | None]) -> Script:
    """Return a script that answers the n-th call with an answer id, files and how many chunks come before it breaks.

    Like a frontend it leaves out the chunks before the point that the request resumes from, in an answer of that id.
    """
    scripted = iter(calls)

    async def script(request: images_pb2.GenerateRequest) -> AsyncIterator[images_pb2.GenerateEvent]:
        answer_id, files, chunks_sent = next(scripted)
        yield accepted(request, answer_id)
        yield progress(1, 1)
        point, lacking = request.resume_from, all_chunks(files)
        if point.answer_id == answer_id:
            after = (point.index, point.offset)
            lacking = [c for c in lacking if (c.image_chunk.index, c.image_chunk.offset) >= after]
        for chunk in lacking[:chunks_sent]:
            yield chunk
        if chunks_sent is not None:
            raise BROKEN
        yield images_pb2.GenerateEvent(done=closing(request, files))

    return script


def test_broken_stream_gets_what_it_lacks(server: StubServer, caller: Caller) -> None:
    server.script = answers(("a", FILES, 1), ("a", FILES, 2), ("a", FILES, 0), ("a", FILES, None))
    result = caller.generate(server.address, seed=5)
    assert [image.data for image in result.images] == FILES
    points = [(r.resume_from.answer_id, r.resume_from.index, r.resume_from.offset) for r in server.requests]
    assert points == [("", 0, 0), ("a", 0, CHUNK_BYTES), ("a", 1, CHUNK_BYTES), ("a", 1, CHUNK_BYTES)]
    first = server.requests[0]
    assert not first.HasField("resume_from")
    for request in server.requests:
        request.ClearField("resume_from")
        assert request == first


@pytest.mark.parametrize("answer_ids", [("a", "b"), ("", "")], ids=["computed anew", "server that keeps nothing"])
def test_images_of_two_computations_never_mix(server: StubServer, caller: Caller, answer_ids: tuple[str, str]) -> None:
    first, second = answer_ids
    server.script = answers((first, FILES, 3), (second, OTHER_FILES, None))
    assert [image.data for image in caller.generate(server.address).images] == OTHER_FILES


def test_computed_anew_and_broken_again_before_any_image(server: StubServer, caller: Caller) -> None:
    """The point of the first answer must not be held against the second one."""
    server.script = answers(("a", FILES, 3), ("b", OTHER_FILES, 0), ("b", OTHER_FILES, None))
    assert [image.data for image in caller.generate(server.address).images] == OTHER_FILES
    last = server.requests[-1].resume_from
    assert (last.answer_id, last.index, last.offset) == ("b", 0, 0)


def test_caller_sees_one_beginning_and_one_end(server: StubServer, caller: Caller) -> None:
    server.script = answers(("a", FILES, 1), ("a", FILES, None))
    kinds = [type(event) for event in caller.stream(server.address)]
    assert kinds == [Accepted, Progress, Progress, Done]


def test_resumptions_are_bounded(server: StubServer, caller: Caller) -> None:
    server.script = answers(*[("a", FILES, 0)] * 20)
    with pytest.raises(UnavailableError, match="the connection broke") as raised:
        caller.generate(server.address)
    assert raised.value.reason == "GROUP_LOST"
    assert len(server.requests) == 1 + MOST_RESUMPTIONS


def test_other_errors_are_not_tried_again(server: StubServer, caller: Caller) -> None:
    async def script(request: images_pb2.GenerateRequest) -> AsyncIterator[images_pb2.GenerateEvent]:
        yield accepted(request, "a")
        raise ComputationFailed("not finite", reason="NOT_FINITE")

    server.script = script
    with pytest.raises(ServerError, match="not finite"):
        caller.generate(server.address)
    assert len(server.requests) == 1


def test_no_pause_beyond_the_deadline(server: StubServer, caller: Caller) -> None:
    async def script(request: images_pb2.GenerateRequest) -> AsyncIterator[images_pb2.GenerateEvent]:
        yield accepted(request, "a")
        raise Unavailable("gone", reason="GROUP_LOST", retry_after_seconds=60)

    server.script = script
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="gone"):
        caller.generate(server.address, deadline_seconds=5)
    assert time.monotonic() - began < 4
    assert len(server.requests) == 1


def test_the_deadline_is_one_for_all_calls(server: StubServer, caller: Caller) -> None:
    async def script(request: images_pb2.GenerateRequest) -> AsyncIterator[images_pb2.GenerateEvent]:
        yield accepted(request, "a")
        if not request.HasField("resume_from"):
            raise BROKEN
        await asyncio.Event().wait()

    server.script = script
    began = time.monotonic()
    with pytest.raises(DeadlineError):
        caller.generate(server.address, deadline_seconds=0.5)
    assert 0.4 < time.monotonic() - began < 3
    assert len(server.requests) == 2


def test_pauses_grow_as_those_of_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)
    assembly = Assembly()
    assembly.take(accepted(images_pb2.GenerateRequest(), "a"))
    resumption = Resumption(images_pb2.GenerateRequest(), None, assembly)
    broken = UnavailableError("broken", code=None, reason="UNAVAILABLE")  # type: ignore[arg-type]  # not looked at
    assert [resumption.pause_seconds(broken) for _ in range(MOST_RESUMPTIONS)] == [0.25, 0.5, 1.0, 2.0, 2.0]
    with pytest.raises(UnavailableError):
        resumption.pause_seconds(broken)


def test_closing_the_client_ends_a_pause(server: StubServer) -> None:
    async def script(request: images_pb2.GenerateRequest) -> AsyncIterator[images_pb2.GenerateEvent]:
        yield accepted(request, "a")
        raise Unavailable("gone", reason="GROUP_LOST", retry_after_seconds=60)

    server.script = script
    client = Client(server.address)
    threading.Timer(0.3, client.close).start()
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="gone"):
        client.generate("a red fox")
    assert time.monotonic() - began < 10
