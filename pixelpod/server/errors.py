"""Exceptions that end a request, the one table that maps them to gRPC statuses, and the interceptor that applies it.

Code raises a `RequestError`; nobody else chooses a status code. Any other exception becomes INTERNAL with an incident
id: the caller gets the id, the log gets the traceback. No message holds prompt text.
"""

from __future__ import annotations

import inspect
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

logger = logging.getLogger(__name__)

ERROR_DOMAIN = "pixelpod"
"""The domain of every google.rpc.ErrorInfo we send."""

MAX_MESSAGE_BYTES = 1024
"""Longer messages are cut: statuses travel in HTTP/2 headers, whose usual limit is 8 KiB for all of them."""

STATUS_DETAILS_KEY = "grpc-status-details-bin"
RETRY_PUSHBACK_KEY = "grpc-retry-pushback-ms"


class RequestError(Exception):
    """A request that ends without its images.

    Args:
        message: What was wrong, the limit, and what to do, for a person.
        reason: Stable UPPER_SNAKE_CASE name of the cause, for programs.
        field: The request field at fault, if one is.
        retry_after_seconds: When a retry may succeed, if it may.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        field: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.field = field
        self.retry_after_seconds = retry_after_seconds


class InvalidRequest(RequestError):
    """The request breaks a documented limit; the same request never succeeds."""

    def __init__(self, field: str, message: str, *, reason: str = "INVALID_PARAMETER") -> None:
        super().__init__(message, reason=reason, field=field)


class UnknownModel(RequestError):
    """No model of that name is served."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="UNKNOWN_MODEL", field="model")


class Unauthenticated(RequestError):
    """The caller did not show who it is."""


class PermissionDenied(RequestError):
    """The caller is known, and may not do this."""


class Unavailable(RequestError):
    """Nobody can serve the request now; another try may find somebody."""


class Overloaded(RequestError):
    """There is more work than can be taken; try again after the delay."""


class AnswerTooLarge(RequestError):
    """The answer does not fit the way it was asked for."""


class LikelyCause(RequestError):
    """The request broke those that computed it, and is not tried again."""


class AlreadyExists(RequestError):
    """The name given to the request is another request's."""


class DeadlinePassed(RequestError):
    """The request's time ran out."""


class ComputationFailed(RequestError):
    """The model failed on this request, for example with values that are not numbers."""


STATUS_CODES: dict[type[RequestError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownModel: grpc.StatusCode.NOT_FOUND,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    AnswerTooLarge: grpc.StatusCode.FAILED_PRECONDITION,
    LikelyCause: grpc.StatusCode.FAILED_PRECONDITION,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    DeadlinePassed: grpc.StatusCode.DEADLINE_EXCEEDED,
    ComputationFailed: grpc.StatusCode.INTERNAL,
}
"""The table. A new kind of error is a new row here."""


def status_code_of(error: BaseException) -> grpc.StatusCode:
    """Return the code that `error` ends a call with; INTERNAL for what is not in the table."""
    return STATUS_CODES.get(cast(type[RequestError], type(error)), grpc.StatusCode.INTERNAL)


def status_of(error: RequestError) -> status_pb2.Status:
    """Return the google.rpc.Status of `error`, with ErrorInfo and, where they apply, BadRequest and RetryInfo."""
    message = _cut(error.message)
    status = status_pb2.Status(code=status_code_of(error).value[0], message=message)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN))
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=message, reason=error.reason
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_seconds is not None:
        delay = Duration()
        delay.FromNanoseconds(round(error.retry_after_seconds * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def from_call(call: grpc.aio.AioRpcError) -> RequestError:
    """Return the `RequestError` that another Pixelpod server ended `call` with: the inverse of `status_of`.

    A status that no Pixelpod server made (a broken connection, a deadline seen by gRPC itself) becomes the row of the
    table with the same code; a code outside the table becomes `Unavailable`.
    """
    details = _details_of(call)
    reason, field, retry_after_seconds = call.code().name, None, None
    for packed in details.details:
        info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if packed.Unpack(info):
            reason = info.reason
        elif packed.Unpack(bad_request) and bad_request.field_violations:
            field = bad_request.field_violations[0].field
        elif packed.Unpack(retry):
            retry_after_seconds = retry.retry_delay.ToNanoseconds() / 1e9
    kind = next((kind for kind, code in STATUS_CODES.items() if code == call.code()), Unavailable)
    error = kind.__new__(kind)
    RequestError.__init__(
        error, call.details() or reason, reason=reason, field=field, retry_after_seconds=retry_after_seconds
    )
    return error


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends every call that raises with the status of its exception. Handlers raise; they never abort."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the call's handler, whatever its kind."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        make_handler, name = HANDLER_KINDS[handler.request_streaming, handler.response_streaming]
        guard = _guard_stream if handler.response_streaming else _guard_unary
        # A single request is decoded within the guard, so that one that can't be read has a status of ours too.
        outside, within = None, handler.request_deserializer
        if handler.request_streaming:
            outside, within = within, None
        return make_handler(
            guard(getattr(handler, name), within or _as_it_is),
            request_deserializer=outside,
            response_serializer=handler.response_serializer,
        )


HANDLER_KINDS: dict[tuple[bool, bool], tuple[Callable[..., grpc.RpcMethodHandler[Any, Any]], str]] = {
    (False, False): (grpc.unary_unary_rpc_method_handler, "unary_unary"),
    (False, True): (grpc.unary_stream_rpc_method_handler, "unary_stream"),
    (True, False): (grpc.stream_unary_rpc_method_handler, "stream_unary"),
    (True, True): (grpc.stream_stream_rpc_method_handler, "stream_stream"),
}
"""Whether requests and responses stream, to how a handler is made and where it has its function."""


def _as_it_is(request: Any) -> Any:
    return request


def _decoded(request: Any, deserialize: Callable[[Any], Any]) -> Any:
    try:
        return deserialize(request)
    except DecodeError as error:
        raise InvalidRequest(
            "request", "the request is no protobuf message of this method's type", reason="MALFORMED_MESSAGE"
        ) from error


def _guard_unary(handle: Callable[[Any, Any], Awaitable[Any]], deserialize: Callable[[Any], Any]) -> Any:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await handle(_decoded(request, deserialize), context)
        except Exception as error:  # noqa: BLE001 -- the one place where any error becomes a status
            del request  # see _end_with
            await _end_with(error, context)

    return guarded


def _guard_stream(handle: Callable[[Any, Any], AsyncIterator[Any]], deserialize: Callable[[Any], Any]) -> Any:
    if inspect.iscoroutinefunction(handle):  # writes to its context instead of yielding, as health's Watch does
        return _guard_unary(handle, deserialize)

    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            async for response in handle(_decoded(request, deserialize), context):
                yield response
        except Exception as error:  # noqa: BLE001 -- the one place where any error becomes a status
            del request  # see _end_with
            await _end_with(error, context)

    return guarded


async def _end_with(error: Exception, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Abort the call with the status of `error`. Never returns: abort raises."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, RequestError):
        incident = uuid.uuid4().hex[:12]
        logger.error("unexpected error", exc_info=error, extra={"incident": incident})
        error.__traceback__ = None
        error = ComputationFailed(
            f"internal error; the server's log explains it under incident {incident}", reason="INTERNAL"
        )
    metadata: list[tuple[str, str | bytes]] = [(STATUS_DETAILS_KEY, status_of(error).SerializeToString())]
    if error.retry_after_seconds is not None:
        metadata.append((RETRY_PUSHBACK_KEY, _pushback(error.retry_after_seconds, context.time_remaining())))
    # gRPC keeps the exception that abort raises in a cycle with its context. Without the tracebacks' frames, that cycle
    # does not hold the request, megabytes of refused prompt included, until the garbage collector comes by.
    error.__traceback__ = None
    await context.abort(status_code_of(error), _cut(error.message), tuple(metadata))


def _pushback(retry_after_seconds: float, remaining_seconds: float | None) -> str:
    """Return what tells gRPC's own retries when to try again: not at all (-1) where the call's time would be over.

    Else gRPC would wait for the deadline, and hide the error (https://github.com/grpc/proposal/blob/master/A6-client-retries.md).
    """
    if remaining_seconds is not None and retry_after_seconds >= remaining_seconds:
        return "-1"
    return str(round(retry_after_seconds * 1000))


def _details_of(call: grpc.aio.AioRpcError) -> status_pb2.Status:
    status = status_pb2.Status(code=code_pb2.UNKNOWN)
    for key, value in call.trailing_metadata() or ():
        if key == STATUS_DETAILS_KEY:
            status.ParseFromString(cast(bytes, value))
    return status


def _cut(message: str) -> str:
    return message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
