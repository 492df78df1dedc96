"""Repeated request ids: who computes, who joins, what is kept and for how long."""

from __future__ import annotations

import pytest

from pixelpod.server.errors import AlreadyExists, ComputationFailed, InvalidRequest
from pixelpod.server.events import Event, encode
from service.answers import Answers
from tests.service.answers.plane import CHUNKS, KEPT_BYTES, REQUEST, Call, kept_bytes, progress, repeats
from tests.service.conftest import WAIT_SECONDS, eventually


async def test_a_repeat_joins_the_running_computation(plane, metrics, call) -> None:
    first = call()
    await first.read("progress")
    second = call()
    await second.read("progress")
    plane.go_on()
    assert [encode(event) for event in await first.whole()] == [encode(event) for event in await second.whole()]
    assert first.kinds == ["accepted", "progress", "progress", "chunk", "chunk", "chunk", "chunk", "done"]
    assert len(plane.records) == 1
    assert (repeats(metrics, "joined"), repeats(metrics, "kept")) == (1, 0)
    assert (second.record.request_id, second.record.model) == ("r", "tiny")


async def test_one_who_joins_late_gets_the_latest_progress_only(plane, call) -> None:
    first = call()
    await first.read("progress")
    plane.steps.set()
    await eventually(lambda: first.kinds.count("progress") == 2)
    second = call()
    await second.read("progress")
    plane.go_on()
    await second.whole()
    assert second.kinds == ["accepted", "progress", "chunk", "chunk", "chunk", "chunk", "done"]
    assert second.events[1] == progress(2)


async def test_chunks_are_not_copied(plane, call) -> None:
    plane.go_on()
    first = call()
    await first.whole()
    second = call()
    await second.whole()
    for each in (first, second):
        assert all(chunk is original for chunk, original in zip(each.chunks, CHUNKS, strict=True))


async def test_a_repeat_after_the_end_gets_the_kept_answer(plane, metrics, call) -> None:
    plane.go_on()
    first = call()
    await first.whole()
    second = call()
    await second.whole()
    assert second.kinds == ["accepted", "chunk", "chunk", "chunk", "chunk", "done"]
    assert [event for event in first.events if not _is_progress(event)] == second.events
    assert len(plane.records) == 1
    assert (repeats(metrics, "joined"), repeats(metrics, "kept")) == (0, 1)
    assert kept_bytes(metrics) == sum(len(encode(event)) for event in second.events)
    assert (second.record.request_id, second.record.model, second.record.queue_seconds) == ("r", "tiny", None)


@pytest.mark.parametrize("ended", [False, True], ids=["running", "kept"])
async def test_other_parameters_are_refused(plane, call, ended: bool) -> None:
    first = call()
    await first.read("progress")
    if ended:
        plane.go_on()
        await first.whole()
    error = await call(seed=1).error()
    assert isinstance(error, AlreadyExists)
    assert (error.reason, error.field) == ("REQUEST_ID_REUSED", "request_id")
    assert "draw a new one" in error.message
    plane.go_on()
    await first.whole()
    assert len(plane.records) == 1


async def test_callers_are_apart(plane, call) -> None:
    calls = [call(caller="alice"), call(caller="bob", seed=1)]
    plane.go_on()
    for each in calls:
        await each.whole()
    assert len(plane.records) == 2
    assert calls[0].answer_id != calls[1].answer_id


async def test_without_an_id_nothing_is_shared_or_kept(plane, metrics, call) -> None:
    calls = [call(request_id=""), call(request_id="")]
    plane.go_on()
    for each in calls:
        await each.whole()
        assert each.answer_id == ""
    assert len(plane.records) == 2
    assert kept_bytes(metrics) == 0


async def test_bad_id_is_refused_and_not_recorded(plane, call) -> None:
    bad = call(request_id="no spaces")
    assert isinstance(await bad.error(), InvalidRequest)
    assert bad.record.request_id == ""
    assert not plane.records


@pytest.mark.parametrize("error", [ComputationFailed("NaN", reason="NOT_FINITE"), ValueError("a bug")], ids=repr)
async def test_errors_reach_all_and_are_forgotten(plane, metrics, call, error: Exception) -> None:
    calls = [call(), call()]
    for each in calls:
        await each.read("progress")
    plane.error = error
    plane.steps.set()
    for each in calls:
        with pytest.raises(type(error)):
            await each.whole()
    assert kept_bytes(metrics) == 0
    plane.error = None
    plane.go_on()
    await call().whole()
    assert len(plane.records) == 2


async def test_answer_over_the_limit_is_not_kept(plane, metrics) -> None:
    answers = Answers(plane.generate, metrics, 60.0, 50)
    plane.go_on()
    for _ in range(2):
        call = Call(answers, "", REQUEST, WAIT_SECONDS)
        await call.whole()
    assert len(plane.records) == 2
    assert kept_bytes(metrics) == 0


async def test_kept_bytes_are_freed_when_the_window_ends(plane, metrics) -> None:
    answers = Answers(plane.generate, metrics, 0.2, KEPT_BYTES)
    plane.go_on()
    await Call(answers, "", REQUEST, WAIT_SECONDS).whole()
    assert kept_bytes(metrics) != 0
    await eventually(lambda: kept_bytes(metrics) == 0)


def _is_progress(event: Event) -> bool:
    return not isinstance(event, memoryview) and event.HasField("progress")
