"""The WorkerGroup service: how calls of frontends become accepted requests, and the group's status a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from pixelpod.server.callers import current_caller
from pixelpod.server.errors import Unavailable
from pixelpod.v1 import group_pb2
from workers.batching import BatchKey
from workers.metrics import GroupMetrics
from workers.model_file import ModelFile
from workers.queue import RequestQueue
from workers.request import AcceptedRequest
from workers.status import StatusBoard
from workers.validation import check_request, check_warm

SERVICE = group_pb2.DESCRIPTOR.services_by_name["WorkerGroup"].full_name

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

    async def execute(self, request: group_pb2.ExecuteRequest, context: Any) -> AsyncIterator[bytes]:
        """See the contract. Every call that comes this far is counted once, with the code it ends with."""
        arrived = time.monotonic()
        context.add_done_callback(lambda _: self._metrics.request_ended(_code(context), time.monotonic() - arrived))
        current_caller().check_model(self._model.name)
        if self._status.state != group_pb2.GROUP_STATE_READY:
            reason = self._status.snapshot().reason
            raise Unavailable(f"the group is not ready: {reason}", reason="GROUP_NOT_READY", retry_after_seconds=1.0)
        accepted = self._accept(request, context.time_remaining())
        load = self._queue.put(accepted)
        # Called however the call ends: also when its caller leaves while a chunk is on its way.
        context.add_done_callback(lambda _: self._leave(accepted))
        accepted.tell_accepted(load.ahead, load.backlog_seconds + accepted.seconds_left)
        async for message in accepted.messages():
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
            "Execute": grpc.unary_stream_rpc_method_handler(
                self.execute,
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

    def _accept(self, request: group_pb2.ExecuteRequest, seconds_left: float | None) -> AcceptedRequest:
        """Return a valid request, with the caller's deadline or the group's own, whichever is nearer."""
        bucket = check_request(request, self._model)
        check_warm(self._status.bucket(bucket.width, bucket.height))
        seconds_left = (
            self._max_request_seconds if seconds_left is None else min(seconds_left, self._max_request_seconds)
        )
        key = BatchKey.of(request, bucket)
        return AcceptedRequest(
            request,
            key,
            deadline=time.monotonic() + seconds_left,
            predicted_seconds=self._queue.estimates.seconds(key, len(request.parameters.seeds)),
            loop=asyncio.get_running_loop(),
        )

    def _leave(self, accepted: AcceptedRequest) -> None:
        accepted.abandon()
        self._queue.leave(accepted)


def _code(context: Any) -> grpc.StatusCode:
    """Return the code that a call ended with: its status, or else what its caller did."""
    code: grpc.StatusCode | None = context.code()
    if code is not None:
        return code
    if context.done():
        return grpc.StatusCode.OK
    return grpc.StatusCode.DEADLINE_EXCEEDED if context.time_remaining() == 0 else grpc.StatusCode.CANCELLED
