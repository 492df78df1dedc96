"""With which code a call ended, as its caller sees it."""

from __future__ import annotations

from typing import Any

import grpc

from pixelpod.server.readers import Reader


def ending_of(context: Any, reader: Reader, abandoned: grpc.StatusCode | None = None) -> grpc.StatusCode:
    """Return the code of a call that ended, in a callback of `context.add_done_callback`.

    Args:
        context: Of the call, a grpc.aio.ServicerContext.
        reader: Of its answer.
        abandoned: The code of a call that its caller ended; None to go by the call's deadline.
    """
    if reader.ended_with is not None:
        return reader.ended_with
    code: grpc.StatusCode | None = context.code()
    if code is not None:
        return code
    if context.done():
        return grpc.StatusCode.OK
    if abandoned is not None:
        return abandoned
    return grpc.StatusCode.DEADLINE_EXCEEDED if context.time_remaining() == 0 else grpc.StatusCode.CANCELLED
