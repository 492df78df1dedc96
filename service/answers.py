"""Request ids as idempotency keys: a repeated request joins the running computation, or gets the kept answer."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeAlias

from pixelpod.server.errors import AlreadyExists, DeadlinePassed, InvalidRequest, Unavailable
from pixelpod.server.events import Event, Events, decode_chunk, size_bytes
from pixelpod.server.readers import current_reader
from pixelpod.v1 import images_pb2
from service.computation import Computation
from service.kept_answers import KeptAnswer, KeptAnswers, Key
from service.metrics import FrontendMetrics
from service.records import RequestRecord
from service.validation import resolve_request_id

Generate: TypeAlias = Callable[[images_pb2.GenerateRequest, RequestRecord], Events]
"""The data plane: yields the events that answer a request; closing them stops the computation."""


class Answers:
    """All answers under way, and those kept of late, by caller and request id.

    Args:
        generate: Computes a request.
        metrics: Where repeated requests and kept bytes are shown.
        kept_seconds: How long after its end an answer is kept.
        kept_bytes: How much all kept answers may hold.
    """

    def __init__(self, generate: Generate, metrics: FrontendMetrics, kept_seconds: float, kept_bytes: int) -> None:
        self._generate = generate
        self._metrics = metrics
        self._kept_seconds = kept_seconds
        self._kept = KeptAnswers(kept_seconds, kept_bytes)
        metrics.answers_kept_bytes.set_function(lambda: self._kept.size_bytes)
        self._running: dict[Key, Computation] = {}
        self._unfinished: set[Computation] = set()
        """All computations whose tasks have not ended, also those without an id, and those given up."""

    async def events(self, caller: str, request: images_pb2.GenerateRequest, record: RequestRecord) -> Events:
        """Yield the events that answer `request`. Closing the iterator leaves the answer to its other callers.

        Args:
            caller: Who asks; ids of different callers are different.
            request: As it came.
            record: Of this call: its time, and what becomes known.

        Raises:
            RequestError: that ends the request.
        """
        if request.request_id:
            record.request_id = resolve_request_id(request)
            answer = self._named(caller, request, record)
        elif request.HasField("resume_from"):
            raise InvalidRequest("resume_from", "resume_from needs the request_id of the stream that broke")
        else:
            answer = self._begin(request, record).read(record)
        async with aclosing(answer):
            async for event in _lacking(answer, request.resume_from) if request.HasField("resume_from") else answer:
                yield event

    async def close(self) -> None:
        """Give up all computations that still run: by now, nobody can come back for them."""
        for computation in self._unfinished:
            computation.give_up()
        await asyncio.gather(*(computation.task for computation in self._unfinished), return_exceptions=True)

    async def _named(self, caller: str, request: images_pb2.GenerateRequest, record: RequestRecord) -> Events:
        """Yield the answer to a request with an id: the kept one, or that of a computation."""
        key, fingerprint = (caller, record.request_id), _fingerprint(request)
        kept = self._kept.find(key)
        if kept is None:
            async with aclosing(self._computed(key, fingerprint, request, record)) as events:
                async for event in events:
                    yield event
            return
        _check_same(fingerprint, kept.fingerprint)
        self._metrics.repeated_requests.labels("kept").inc()
        record.model = kept.model
        reader = current_reader()
        reader.add_unread(kept.size_bytes)
        for event in kept.events:
            yield event
            reader.take(size_bytes(event))

    async def _computed(
        self, key: Key, fingerprint: bytes, request: images_pb2.GenerateRequest, record: RequestRecord
    ) -> Events:
        """Yield the answer of the computation that runs under `key`, or of a new one.

        A computation has the time of the call that began it. A joined call that has more begins it anew.
        """
        while True:
            computation = self._join(key, fingerprint) or self._begin(request, record, key, fingerprint)
            images_came = False
            try:
                async with aclosing(computation.read(record)) as events:
                    async for event in events:
                        images_came = images_came or isinstance(event, memoryview)
                        yield event
                return
            except DeadlinePassed as error:
                if computation.record is record or record.remaining_seconds <= 0:
                    raise
                if images_came:  # maybe with another seed than the new ones will have
                    raise _joined_call_ended() from error
            finally:
                record.model = computation.record.model

    def _join(self, key: Key, fingerprint: bytes) -> Computation | None:
        computation = self._running.get(key)
        if computation is None or computation.given_up:
            return None
        _check_same(fingerprint, computation.fingerprint)
        self._metrics.repeated_requests.labels("joined").inc()
        return computation

    def _begin(
        self,
        request: images_pb2.GenerateRequest,
        record: RequestRecord,
        key: Key | None = None,
        fingerprint: bytes = b"",
    ) -> Computation:
        """Begin to compute; under `key` others can join, and the answer is kept. An id drawn here is never repeated."""
        computation = Computation(
            self._generate(request, record),
            fingerprint,
            record,
            on_end=partial(self._ended, key),
            resumable=key is not None,
        )
        self._unfinished.add(computation)
        if key is not None:
            self._running[key] = computation
        return computation

    def _ended(self, key: Key | None, computation: Computation) -> None:
        """Keep the answer, if there is one and a repeat can ask for it; after a failure a retry computes anew."""
        self._unfinished.discard(computation)
        if key is None:
            return
        if self._running.get(key) is computation:  # no other took the place of one given up
            del self._running[key]
        if events := computation.events:
            self._kept.keep(key, KeptAnswer(computation.fingerprint, computation.record.model, events))
            asyncio.get_running_loop().call_later(self._kept_seconds, self._kept.forget_expired)


async def _lacking(events: Events, point: images_pb2.ResumePoint) -> AsyncIterator[Event]:
    """Yield `events` without the image chunks before `point`, if it is a point of this answer."""
    arrived = False
    async for event in events:
        if not isinstance(event, memoryview):
            if event.HasField("accepted"):
                arrived = event.accepted.answer_id == point.answer_id
        elif arrived:
            # The only place that looks into chunks, for calls that take up a stream, up to the first chunk they lack.
            chunk = decode_chunk(event)
            arrived = (chunk.index, chunk.offset) < (point.index, point.offset)
            if arrived:
                continue
        yield event


def _fingerprint(request: images_pb2.GenerateRequest) -> bytes:
    """Return a digest of all that `request` asks for."""
    if request.HasField("resume_from"):
        whole = images_pb2.GenerateRequest()
        whole.CopyFrom(request)
        whole.ClearField("resume_from")
        request = whole
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()


def _check_same(fingerprint: bytes, known: bytes) -> None:
    if fingerprint != known:
        raise AlreadyExists(
            "request_id was used a moment ago for a request with other parameters: draw a new one for each request, "
            "and repeat one only to ask for exactly the same again",
            reason="REQUEST_ID_REUSED",
            field="request_id",
        )


def _joined_call_ended() -> Unavailable:
    return Unavailable(
        "the call that began this computation ran out of its time while images were on their way; try again",
        reason="JOINED_CALL_ENDED",
        retry_after_seconds=0.0,
    )
