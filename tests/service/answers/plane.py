"""A data plane in the hands of a test, its callers, and what the frontend counts of them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from pixelpod.server.errors import RequestError
from pixelpod.server.events import Event, Events
from pixelpod.v1 import images_pb2
from service.answers import Answers
from service.metrics import FrontendMetrics
from service.records import RequestRecord
from tests.service.conftest import WAIT_SECONDS, eventually

KEPT_BYTES = 10_000
"""Room for some whole answers."""
CHUNKS = [
    memoryview(
        images_pb2.GenerateEvent(
            image_chunk=images_pb2.ImageChunk(index=index, offset=offset, data=bytes([index]) * 10)
        ).SerializeToString()
    )
    for index in range(2)
    for offset in (0, 10)
]
"""Of two images, each in two chunks of ten bytes: encoded events."""
REQUEST = images_pb2.GenerateRequest(request_id="r", prompt="x")


class Plane:
    """A data plane whose computations go on only as far as its test lets them: `steps`, `first_chunk`, `done`."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.stopped = 0
        self.error: Exception | None = None
        self.steps = asyncio.Event()
        self.first_chunk = asyncio.Event()
        self.done = asyncio.Event()

    def go_on(self) -> None:
        """Let computations go on to their end."""
        for gate in (self.steps, self.first_chunk, self.done):
            gate.set()

    def go_on_to_first_chunk(self) -> None:
        """Let computations go on until the first chunk is out."""
        for gate in (self.steps, self.first_chunk):
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


class Call:
    """One caller, reading in a task of its own from the moment it is made."""

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
        """Of all events so far; "chunk" for encoded ones."""
        return ["chunk" if isinstance(event, memoryview) else event.WhichOneof("event") for event in self.events]

    @property
    def chunks(self) -> list[memoryview]:
        """All chunks so far."""
        return [event for event in self.events if isinstance(event, memoryview)]

    @property
    def answer_id(self) -> str:
        """By the first event."""
        assert not isinstance(self.events[0], memoryview)
        return self.events[0].accepted.answer_id

    async def whole(self) -> list[Event]:
        """Wait for the end, and return all events."""
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.task

    async def error(self) -> RequestError:
        """Wait for the end, which is an error, and return it."""
        with pytest.raises(RequestError) as raised:
            await self.whole()
        return raised.value

    async def leave(self) -> None:
        """End the call as its caller, before its end."""
        self.task.cancel()
        await asyncio.wait([self.task])


def progress(step: int) -> images_pb2.GenerateEvent:
    """Return the event of a step that a `Plane` computed."""
    return images_pb2.GenerateEvent(progress=images_pb2.Progress(step=step, steps=2))


def repeats(metrics: FrontendMetrics, source: str) -> float:
    """Return how many repeats got their answer from there: "joined" or "kept"."""
    labels = {"source": source}
    return metrics.registry.get_sample_value("pixelpod_frontend_repeated_requests_total", labels) or 0


def kept_bytes(metrics: FrontendMetrics) -> float | None:
    """Return what all kept answers take."""
    return metrics.registry.get_sample_value("pixelpod_frontend_answers_kept_bytes")
