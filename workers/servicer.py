"""The WorkerGroup service: how calls of frontends become accepted requests, and the group's status a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import grpc

from pixelpod.server.callers import current_caller
from pixelpod.server.endings import ending_of
from pixelpod.server.errors import Unavailable
from pixelpod.server.readers import current_reader
from pixelpod.v1 import group_pb2
from workers.batching import BatchKey
from workers.metrics import GroupMetrics
from workers.model_file import ModelFile
from workers.queue import RequestQueue
from workers.request import AcceptedRequest
from workers.status import StatusBoard
from workers.streamed_request import StreamedRequest
from workers.validation import check_request, not_warm
from workers.whole_request import WholeRequest

SERVICE = group_pb2.DESCRIPTOR.services_by_name["WorkerGroup"].full_name

Kind = TypeVar("Kind", WholeRequest, StreamedRequest)

STATUS_SECONDS = 0.5
"""WatchStatus sends at least this often."""


class WorkerGroup:
    """Serves pixelpod.v1.WorkerGroup on the endpoint's loop.

    Args:
        model: Which requests are valid.
        queue: Where accepted requests go; its estimates tell how long they take.
        status: What WatchStatus tells.
        metrics: Where ended requests are counted.
        max_request_seconds: Longest time a request may take.
    """

    def __init__(
        self,
        model: ModelFile,
        queue: RequestQueue,
        status: StatusBoard,
        metrics: GroupMetrics,
        max_request_seconds: float,
    ) -> None:
        self._model = model
        self._queue = queue
        self._status = status
        self._metrics = metrics
        self._max_request_seconds = max_request_seconds
        self._news = asyncio.Condition()
        self._watches_ended = False

    async def execute(self, request: group_pb2.ExecuteRequest, context: Any) -> bytes:
        """See the contract."""
        return await self._enter(WholeRequest, request, context).answer()

    async def execute_stream(self, request: group_pb2.ExecuteRequest, context: Any) -> AsyncIterator[bytes]:
        """See the contract."""
        async for message in self._enter(StreamedRequest, request, context).messages():
            yield message

    async def watch_status(
        self, request: group_pb2.WatchStatusRequest, context: Any
    ) -> AsyncIterator[group_pb2.GroupStatus]:
        """See the contract."""
        while not self._watches_ended:
            yield self._status.snapshot()
            async with self._news:
                try:
                    async with asyncio.timeout(STATUS_SECONDS):
                        await self._news.wait()
                except TimeoutError:
                    continue

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service. The generated registration would encode every answer; here they are already."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Execute": grpc.unary_unary_rpc_method_handler(
                self.execute,
                request_deserializer=group_pb2.ExecuteRequest.FromString,
            ),
            "ExecuteStream": grpc.unary_stream_rpc_method_handler(
                self.execute_stream,
                request_deserializer=group_pb2.ExecuteRequest.FromString,
            ),
            "WatchStatus": grpc.unary_stream_rpc_method_handler(
                self.watch_status,
                request_deserializer=group_pb2.WatchStatusRequest.FromString,
                response_serializer=group_pb2.GroupStatus.SerializeToString,
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def wake_watches(self) -> None:
        """Have every status stream send now."""
        async with self._news:
            self._news.notify_all()

    async def end_watches(self) -> None:
        """End every status stream."""
        self._watches_ended = True
        await self.wake_watches()

    def _enter(self, kind: type[Kind], request: group_pb2.ExecuteRequest, context: Any) -> Kind:
        """Return a request that is in the queue until its call ends, however that is.

        Every call that comes this far is counted once, with the code it ends with.
        """
        arrived = time.monotonic()
        reader = current_reader()
        context.add_done_callback(
            lambda _: self._metrics.request_ended(ending_of(context, reader), time.monotonic() - arrived)
        )
        accepted = self._accept(kind, request, context.time_remaining())
        reader.deadline = accepted.deadline
        self._queue.put(accepted)
        # Not when the handler ends: a caller may leave while a chunk is on its way.
        context.add_done_callback(lambda _: self._leave(accepted))
        return accepted

    def _accept(self, kind: type[Kind], request: group_pb2.ExecuteRequest, seconds_left: float | None) -> Kind:
        """Return a valid request, with the caller's deadline or the group's own, whichever is nearer."""
        current_caller().check_model(self._model.name)
        if self._status.state != group_pb2.GROUP_STATE_READY:
            reason = self._status.snapshot().reason
            raise Unavailable(f"the group is not ready: {reason}", reason="GROUP_NOT_READY", retry_after_seconds=1.0)
        bucket = check_request(request, self._model)
        if not self._status.warm(bucket.width, bucket.height):
            raise not_warm(bucket)
        seconds_left = (
            self._max_request_seconds if seconds_left is None else min(seconds_left, self._max_request_seconds)
        )
        key = BatchKey.of(request, bucket)
        return kind(
            request,
            key,
            deadline=time.monotonic() + seconds_left,
            predicted_seconds=self._queue.estimates.seconds(key, len(request.parameters.seeds)),
            loop=asyncio.get_running_loop(),
        )

    def _leave(self, accepted: AcceptedRequest) -> None:
        accepted.abandon()
        self._queue.leave(accepted)
