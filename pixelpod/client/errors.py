"""The client's exceptions, and how a gRPC status becomes one of them."""

from __future__ import annotations

from typing import cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status


class PixelpodError(Exception):
    """A call that ended without its result. Catch this one, or the kind that you can do something about.

    Attributes:
        code: The gRPC status code.
        message: What was wrong, the limit, and what to do, for a person.
        reason: Stable UPPER_SNAKE_CASE name of the cause, for programs; the code's name when the server gave none.
        field: The request field at fault, if one is.
        retry_after_seconds: When a retry may succeed, if the server said so.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode,
        reason: str,
        field: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        self.field = field
        self.retry_after_seconds = retry_after_seconds


class InvalidRequestError(PixelpodError):
    """The request breaks a limit; the same request never succeeds."""


class UnknownModelError(PixelpodError):
    """No model of that name is served."""


class UnauthenticatedError(PixelpodError):
    """The server needs a token, or does not know this one."""


class PermissionDeniedError(PixelpodError):
    """The server knows the token, and it is not for this model."""


class AnswerTooLargeError(PixelpodError):
    """The answer does not fit the way it was asked for."""


class RequestIdReusedError(PixelpodError):
    """The request id is that of another request of the last minutes; draw a new one."""


class UnavailableError(PixelpodError):
    """Nobody could be reached who serves the request now, also by retries."""


class OverloadedError(PixelpodError):
    """The server has more work than it takes; try again after the delay."""


class DeadlineError(PixelpodError):
    """The time for the call ran out."""


class RequestCancelledError(PixelpodError):
    """The call was given up, for example because the client was closed during it."""


class ServerError(PixelpodError):
    """The server failed, or what answered is no Pixelpod frontend."""


ERROR_TYPES: dict[grpc.StatusCode, type[PixelpodError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: UnknownModelError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.FAILED_PRECONDITION: AnswerTooLargeError,
    grpc.StatusCode.ALREADY_EXISTS: RequestIdReusedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.CANCELLED: RequestCancelledError,
}
"""The exception of each status code; all others are `ServerError`."""


def error_from_call(call: grpc.RpcError, address: str) -> PixelpodError:
    """Return the exception for a call to `address` that ended with the status `call`."""
    code = call.code()
    message, reason, field, retry_after_seconds = f"{address}: {call.details() or code.name}", code.name, None, None
    for packed in _details_of(call).details:
        info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if packed.Unpack(info):
            # Pixelpod's own words stand alone; those of gRPC or a proxy need the address to make sense.
            message, reason = call.details() or info.reason, info.reason
        elif packed.Unpack(bad_request) and bad_request.field_violations:
            field = bad_request.field_violations[0].field
        elif packed.Unpack(retry):
            retry_after_seconds = retry.retry_delay.ToNanoseconds() / 1e9
    return ERROR_TYPES.get(code, ServerError)(
        message, code=code, reason=reason, field=field, retry_after_seconds=retry_after_seconds
    )


def _details_of(call: grpc.RpcError) -> status_pb2.Status:
    try:
        # An RpcError that a call raised is also its grpc.Call.
        return rpc_status.from_call(cast(grpc.Call, call)) or status_pb2.Status()
    except (ValueError, DecodeError):
        # Details that contradict the status, or that something on the way mangled: the status alone must do.
        return status_pb2.Status()
