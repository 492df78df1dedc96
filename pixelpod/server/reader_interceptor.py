"""Puts every call of a server under the watchdog of its readers."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from pixelpod.server.callers import ANONYMOUS, current_caller
from pixelpod.server.cancellation import cancel_call
from pixelpod.server.handlers import function_of, with_function
from pixelpod.server.readers import Reader, Readers, enter_reader


class ReaderInterceptor(grpc.aio.ServerInterceptor):
    """Watches what callers take of their answers. Goes first, so that nothing is sent that it does not see."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the call's handler, whatever its kind."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        function = function_of(handler)
        watched = self._stream(function) if inspect.isasyncgenfunction(function) else self._unary(function)
        return with_function(handler, watched)

    def _unary(self, handle: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        async def watched(request: Any, context: Any) -> Any:
            reader = self._enter(context)
            handling = handle(request, context)
            del (
                request
            )  # gRPC keeps the exception of an aborted call, and with it this frame, until garbage is collected
            response = await handling
            if response is not None:  # a stream that ended without a message
                reader.begin_message(_size_bytes(response))
            return response

        return watched

    def _stream(self, handle: Callable[[Any, Any], AsyncIterator[Any]]) -> Any:
        async def watched(request: Any, context: Any) -> AsyncIterator[Any]:
            reader = self._enter(context)
            responses = handle(request, context)
            del request  # as above
            async for response in responses:
                with reader.taking(_size_bytes(response)):
                    yield response

        return watched

    def _enter(self, context: Any) -> Reader:
        reader = self._readers.enter(_caller_of(context), partial(cancel_call, context))
        context.add_done_callback(lambda _: self._readers.leave(reader))
        enter_reader(reader)
        return reader


def _caller_of(context: Any) -> str:
    """Return whose bytes these are: the caller's by its token, or else its address's."""
    caller = current_caller()
    return context.peer().rpartition(":")[0] if caller is ANONYMOUS else caller.name


def _size_bytes(response: Any) -> int:
    return len(response) if isinstance(response, bytes | memoryview) else response.ByteSize()
