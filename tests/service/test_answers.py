"""Repeated request ids: who computes, who joins, what is kept, and what happens when callers leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest

from pixelpod.server.errors import (
    AlreadyExists,
    ComputationFailed,
    DeadlinePassed,
    InvalidRequest,
    RequestError,
    Unavailable,
)
from pixelpod.server.events import Event, Events, encode
from pixelpod.v1 import images_pb2
from service.answers import Answers
from service.metrics import FrontendMetrics
from service.records import RequestRecord
from tests.service.conftest import WAIT_SECONDS, eventually

KEPT_BYTES = 10_000
CHUNKS = [
    memoryview(
        images_pb2.GenerateEvent(
            image_chunk=images_pb2.ImageChunk(index=index, offset=offset, data=bytes([index]) * 10)
        ).SerializeToString()
    )
    for index in range(2)
    for offset in (0, 10)
]


class Plane:
    """A data plane whose computations go on only as far as a test lets them: `steps`, then `chunks`, then `done`."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.stopped = 0
        self.error: Exception | None = None
        self.steps = asyncio.Event()
        self.first_chunk = asyncio.Event()
        self.done = asyncio.Event()

    def go_on(self) -> None:
        for gate in (self.steps, self.first_chunk, self.done):
            gate.set()

    async def generate(self, request: images_pb2.GenerateRequest, record: RequestRecord) -> Events:
        self.records.append(record)
        record.model = "tiny"
        try:
            yield images_pb2.GenerateEvent(accepted=images_pb2.Accepted(request_id=record.request_id))
            yield progress(1)
            async with asyncio.timeout(record.remaining_seconds):
                await self.steps.wait()
                if self.error is not None:
                    raise self.error
                yield progress(2)
                await self.first_chunk.wait()
                yield CHUNKS[0]
                await self.done.wait()
            for chunk in CHUNKS[1:]:
                yield chunk
            yield images_pb2.GenerateEvent(done=images_pb2.GenerateResponse(request_id=record.request_id))
        except TimeoutError as error:
            raise record.out_of_time() from error
        except asyncio.CancelledError:
            self.stopped += 1
            raise


def progress(step: int) -> images_pb2.GenerateEvent:
    return images_pb2.GenerateEvent(progress=images_pb2.Progress(step=step, steps=2))


class Call:
    """One caller, reading in a task of its own."""

    def __init__(self, answers: Answers, caller: str, request: images_pb2.GenerateRequest, seconds: float) -> None:
        self.record = RequestRecord(seconds)
        self.events: list[Event] = []
        self._events = answers.events(caller, request, self.record)
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> list[Event]:
        async with aclosing(self._events) as events:
            async for event in events:
                self.events.append(event)
        return self.events

    async def read(self, kind: str) -> None:
        """Wait until an event of this kind came."""
        await eventually(lambda: kind in self.kinds)

    @property
    def kinds(self) -> list[str | None]:
        return ["chunk" if isinstance(event, memoryview) else event.WhichOneof("event") for event in self.events]

    @property
    def answer_id(self) -> str:
        assert not isinstance(self.events[0], memoryview)
        return self.events[0].accepted.answer_id

    async def whole(self) -> list[Event]:
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.task

    async def error(self) -> RequestError:
        with pytest.raises(RequestError) as raised:
            await self.whole()
        return raised.value

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@pytest.fixture
async def plane() -> Plane:
    return Plane()


@pytest.fixture
def metrics() -> FrontendMetrics:
    return FrontendMetrics()


@pytest.fixture
async def call(plane: Plane, metrics: FrontendMetrics) -> AsyncIterator[Callable[..., Call]]:
    answers = Answers(plane.generate, metrics, 60.0, KEPT_BYTES)

    def begin(request_id: str = "r", caller: str = "", seconds: float = WAIT_SECONDS, **fields: object) -> Call:
        return Call(answers, caller, images_pb2.GenerateRequest(request_id=request_id, prompt="x", **fields), seconds)

    yield begin
    plane.go_on()
    await answers.close()


def repeats(metrics: FrontendMetrics, source: str) -> float:
    labels = {"source": source}
    return metrics.registry.get_sample_value("pixelpod_frontend_repeated_requests_total", labels) or 0


def kept_bytes(metrics: FrontendMetrics) -> float | None:
    return metrics.registry.get_sample_value("pixelpod_frontend_answers_kept_bytes")


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
    for events in (first.events, await call().whole()):
        chunks = [event for event in events if isinstance(event, memoryview)]
        assert all(chunk is original for chunk, original in zip(chunks, CHUNKS, strict=True))


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


async def test_last_caller_leaves_while_steps_are_computed(plane, metrics, call) -> None:
    calls = [call(), call()]
    for each in calls:
        await each.read("progress")
    await calls[0].leave()
    await asyncio.sleep(0)
    assert plane.stopped == 0
    await calls[1].leave()
    await eventually(lambda: plane.stopped == 1)
    plane.go_on()
    await call().whole()
    assert len(plane.records) == 2
    assert repeats(metrics, "joined") == 1


async def test_a_repeat_right_after_the_last_caller_left_computes_anew(plane, call) -> None:
    """In the moment between the cancel and the end of the task, there is nothing to join."""
    first = call()
    await first.read("progress")
    first.task.cancel()
    second = call()
    plane.go_on()
    await second.whole()
    assert second.kinds[-1] == "done"
    assert (len(plane.records), plane.stopped) == (2, 1)


async def test_first_caller_leaves_while_a_second_is_joined(plane, call) -> None:
    first = call()
    await first.read("progress")
    second = call()
    await second.read("progress")
    await first.leave()
    plane.go_on()
    await second.whole()
    assert second.kinds[-1] == "done"
    assert (len(plane.records), plane.stopped) == (1, 0)


async def test_last_caller_leaves_while_images_come(plane, metrics, call) -> None:
    plane.steps.set()
    plane.first_chunk.set()
    first = call()
    await first.read("chunk")
    await first.leave()
    assert plane.stopped == 0
    taking_up = call(resume_from=images_pb2.ResumePoint(answer_id=first.answer_id, index=0, offset=10))
    await taking_up.read("accepted")
    plane.done.set()
    await taking_up.whole()
    assert [event for event in taking_up.events if isinstance(event, memoryview)] == CHUNKS[1:]
    assert taking_up.answer_id == first.answer_id
    assert (len(plane.records), plane.stopped) == (1, 0)
    assert repeats(metrics, "joined") == 1


async def test_answer_that_nobody_waited_for_is_kept(plane, metrics, call) -> None:
    plane.steps.set()
    plane.first_chunk.set()
    first = call()
    await first.read("chunk")
    await first.leave()
    plane.done.set()
    await eventually(lambda: kept_bytes(metrics) != 0)
    taking_up = call(resume_from=images_pb2.ResumePoint(answer_id=first.answer_id, index=1, offset=0))
    await taking_up.whole()
    assert [event for event in taking_up.events if isinstance(event, memoryview)] == CHUNKS[2:]
    assert len(plane.records) == 1


async def test_images_of_a_first_batch_do_not_keep_the_next_ones_going(plane) -> None:
    async def two_batches(request: images_pb2.GenerateRequest, record: RequestRecord) -> Events:
        yield progress(1)
        yield CHUNKS[0]
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            plane.stopped += 1
            raise

    answers = Answers(two_batches, FrontendMetrics(), 60.0, KEPT_BYTES)
    first = Call(answers, "", images_pb2.GenerateRequest(request_id="r", prompt="x"), WAIT_SECONDS)
    await first.read("chunk")
    await first.leave()
    await eventually(lambda: plane.stopped == 1)


@pytest.mark.parametrize(
    ("point", "lacking"),
    [
        ((0, 0), CHUNKS),
        ((0, 10), CHUNKS[1:]),
        ((0, 20), CHUNKS[2:]),
        ((1, 0), CHUNKS[2:]),
        ((1, 10), CHUNKS[3:]),
        ((1, 20), []),
        ((-1, 0), CHUNKS),
    ],
    ids=str,
)
async def test_chunks_before_the_resume_point_are_left_out(plane, call, point: tuple[int, int], lacking: list) -> None:
    plane.go_on()
    first = call()
    await first.whole()
    index, offset = point
    resume_from = images_pb2.ResumePoint(answer_id=first.answer_id, index=index, offset=offset)
    second = call(resume_from=resume_from)
    await second.whole()
    assert [event for event in second.events if isinstance(event, memoryview)] == lacking
    assert second.kinds[-1] == "done"


async def test_point_of_another_answer_skips_nothing(plane, call) -> None:
    plane.go_on()
    second = call(resume_from=images_pb2.ResumePoint(answer_id="of a frontend that is gone", index=1))
    await second.whole()
    assert [event for event in second.events if isinstance(event, memoryview)] == CHUNKS


async def test_resume_point_needs_an_id(plane, call) -> None:
    error = await call(request_id="", resume_from=images_pb2.ResumePoint(answer_id="a")).error()
    assert isinstance(error, InvalidRequest)
    assert error.field == "resume_from"
    assert not plane.records


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


async def test_joined_caller_whose_time_runs_out_leaves_alone(plane, call) -> None:
    first = call()
    await first.read("progress")
    second = call(seconds=0.05)
    assert isinstance(await second.error(), DeadlinePassed)
    assert not first.task.done()
    plane.go_on()
    await first.whole()
    assert (len(plane.records), plane.stopped) == (1, 0)


async def test_joined_caller_with_more_time_begins_anew(plane, call) -> None:
    first = call(seconds=0.1)
    await first.read("progress")
    second = call()
    assert isinstance(await first.error(), DeadlinePassed)
    await eventually(lambda: len(plane.records) == 2)
    assert plane.records == [first.record, second.record]
    plane.go_on()
    await second.whole()
    assert second.kinds[-1] == "done"
    assert second.kinds.count("accepted") == 2
    answer_ids = {event.accepted.answer_id for event in second.events if not isinstance(event, memoryview)}
    assert len(answer_ids - {""}) == 2


async def test_computation_refused_for_its_own_callers_deadline_is_not_begun_again(plane, call) -> None:
    """A group may see before the time is over that it won't do."""
    plane.error = DeadlinePassed("too many before you", reason="DEADLINE_UNREACHABLE")
    plane.steps.set()
    assert (await call().error()).reason == "DEADLINE_UNREACHABLE"
    assert len(plane.records) == 1


async def test_joined_caller_that_got_images_does_not_get_those_of_another_computation(plane, call) -> None:
    plane.steps.set()
    plane.first_chunk.set()
    first = call(seconds=0.1)
    second = call()
    await second.read("chunk")
    assert isinstance(await first.error(), DeadlinePassed)
    error = await second.error()
    assert isinstance(error, Unavailable)
    assert (error.reason, error.retry_after_seconds) == ("JOINED_CALL_ENDED", 0)
    assert len(plane.records) == 1


async def test_answer_over_the_limit_is_not_kept(plane, metrics) -> None:
    answers = Answers(plane.generate, metrics, 60.0, 50)
    plane.go_on()
    for _ in range(2):
        call = Call(answers, "", images_pb2.GenerateRequest(request_id="r", prompt="x"), WAIT_SECONDS)
        await call.whole()
    assert len(plane.records) == 2
    assert kept_bytes(metrics) == 0


async def test_kept_bytes_are_freed_when_the_window_ends(plane, metrics) -> None:
    answers = Answers(plane.generate, metrics, 0.2, KEPT_BYTES)
    plane.go_on()
    await Call(answers, "", images_pb2.GenerateRequest(request_id="r", prompt="x"), WAIT_SECONDS).whole()
    assert kept_bytes(metrics) != 0
    await eventually(lambda: kept_bytes(metrics) == 0)


async def test_close_stops_what_nobody_waits_for(plane, metrics) -> None:
    answers = Answers(plane.generate, metrics, 60.0, KEPT_BYTES)
    plane.steps.set()
    plane.first_chunk.set()
    first = Call(answers, "", images_pb2.GenerateRequest(request_id="r", prompt="x"), WAIT_SECONDS)
    await first.read("chunk")
    await first.leave()
    async with asyncio.timeout(WAIT_SECONDS):
        await answers.close()
    assert plane.stopped == 1
    assert kept_bytes(metrics) == 0


def _is_progress(event: Event) -> bool:
    return not isinstance(event, memoryview) and event.HasField("progress")
