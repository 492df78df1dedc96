"""The public API's gRPC face: counts and bounds each call, and leaves the work to the data plane."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc

from pixelpod.server.callers import current_caller
from pixelpod.server.endings import ending_of
from pixelpod.server.errors import InvalidRequest
from pixelpod.server.events import Events, encode
from pixelpod.server.readers import current_reader
from pixelpod.v1 import images_pb2
from service.answers import Answers
from service.caller_limits import CallerLimits
from service.generation import Generation
from service.groups import Groups
from service.metrics import FrontendMetrics
from service.records import RequestRecord
from service.settings import FrontendSettings
from service.unary import collect

SERVICE_NAME = images_pb2.DESCRIPTOR.services_by_name["ImageGeneration"].full_name

Context: TypeAlias = Any
"""A grpc.aio.ServicerContext, whose published types lack what its callbacks get."""


class ImageGeneration:
    """Serves pixelpod.v1.ImageGeneration. Handlers raise `RequestError`; the server's interceptor makes statuses."""

    def __init__(
        self,
        groups: Groups,
        generation: Generation,
        limits: CallerLimits,
        metrics: FrontendMetrics,
        settings: FrontendSettings,
    ) -> None:
        self._groups = groups
        self._metrics = metrics
        self._settings = settings
        self._limits = limits
        self._generation = generation
        self._answers = Answers(generation.events, metrics, settings.answer_kept_seconds, settings.answers_kept_bytes)
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def running(self) -> int:
        """Number of requests arrived and not yet ended."""
        return len(self._tasks)

    async def finish(self, seconds: float) -> None:
        """Wait until every request has ended, its status sent, also those that come meanwhile; at most `seconds`."""
        until = time.monotonic() + seconds
        while self._tasks and (left := until - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left)

    async def close(self) -> None:
        """Give up what is still computed, although its callers left."""
        await self._answers.close()

    async def generate(self, request: images_pb2.GenerateRequest, context: Context) -> bytes:
        """Answer once, with an encoded GenerateResponse that has all images inside."""
        record = self._enter(context)
        if request.HasField("resume_from"):
            raise InvalidRequest("resume_from", "Generate answers as a whole: call GenerateStream, or leave it out")
        limit_bytes = self._settings.unary_response_limit_bytes
        if not request.request_id:  # an id drawn here is never repeated: there is nothing to share or to keep
            return await self._generation.answer(request, record, limit_bytes)
        async with aclosing(self._answers.events(current_caller().name, request, record)) as events:
            return await collect(events, limit_bytes)

    async def generate_stream(self, request: images_pb2.GenerateRequest, context: Context) -> Events:
        """Answer with events, as they come."""
        record = self._enter(context)
        async with aclosing(self._answers.events(current_caller().name, request, record)) as events:
            async for event in events:
                yield event

    async def list_models(
        self, request: images_pb2.ListModelsRequest, context: Context
    ) -> images_pb2.ListModelsResponse:
        """Tell what is served to the caller."""
        return images_pb2.ListModelsResponse(models=self._groups.models_for(current_caller()).values())

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service.

        The generated registration would encode every answer; here image bytes pass through encoded.
        """
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Generate": grpc.unary_unary_rpc_method_handler(
                self.generate,
                request_deserializer=images_pb2.GenerateRequest.FromString,
            ),
            "GenerateStream": grpc.unary_stream_rpc_method_handler(
                self.generate_stream,
                request_deserializer=images_pb2.GenerateRequest.FromString,
                response_serializer=encode,
            ),
            "ListModels": grpc.unary_unary_rpc_method_handler(
                self.list_models,
                request_deserializer=images_pb2.ListModelsRequest.FromString,
                response_serializer=images_pb2.ListModelsResponse.SerializeToString,
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))

    def _enter(self, context: Context) -> RequestRecord:
        """Record a call until the last byte of its answer is gone, and give it its time: its caller's deadline, at most
        the server's cap.

        Raises:
            Overloaded: if its caller has as many requests as it may.
        """
        task = asyncio.current_task()
        assert task is not None  # grpc.aio runs every handler in a task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        caller, reader = current_caller(), current_reader()
        caller_seconds: float | None = context.time_remaining()
        cap_seconds = self._settings.max_request_seconds
        record = RequestRecord(cap_seconds if caller_seconds is None else min(caller_seconds, cap_seconds))
        reader.deadline = time.monotonic() + record.remaining_seconds
        self._metrics.in_flight.inc()
        context.add_done_callback(lambda _: self._conclude(record, ending_of(context, reader, record.abandoned_code)))
        self._limits.enter(caller)
        context.add_done_callback(lambda _: self._limits.leave(caller))
        return record

    def _conclude(self, record: RequestRecord, code: grpc.StatusCode) -> None:
        self._metrics.in_flight.dec()
        record.conclude(code, self._metrics)
