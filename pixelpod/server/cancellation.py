"""Ending a call from the server's side, also while it waits for its reader.

A handler that is blocked in a write can't end its call: cancelling its task leaves the call open, and an error status
would wait behind the bytes that nobody reads. gRPC's core can: grpc_call_cancel_with_status sends the status at once,
since trailers are not subject to flow control. The synchronous server offers that as ServicerContext.cancel(), grpc.aio
does not. But its context hands the core's call object to one function of its module, `auth_context`. We stand in for
that function for the length of one call: there is no await in it, so nobody else can see it.
"""

from __future__ import annotations

from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]


def cancel_call(context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, message: str) -> None:
    """End a call of a grpc.aio server with `code` and `message` now, whatever it is doing.

    Its handler is cancelled, and what gRPC holds to be sent is freed. Call it on the server's event loop.
    """

    def cancel(call: Any) -> None:
        call.cancel(code.value[0], message)

    original = cygrpc.auth_context
    cygrpc.auth_context = cancel
    try:
        context.auth_context()
    finally:
        cygrpc.auth_context = original
