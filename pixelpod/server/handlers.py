"""gRPC method handlers, made anew around another function: what interceptors do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

_KINDS: dict[tuple[bool, bool], tuple[Callable[..., grpc.RpcMethodHandler[Any, Any]], str]] = {
    (False, False): (grpc.unary_unary_rpc_method_handler, "unary_unary"),
    (False, True): (grpc.unary_stream_rpc_method_handler, "unary_stream"),
    (True, False): (grpc.stream_unary_rpc_method_handler, "stream_unary"),
    (True, True): (grpc.stream_stream_rpc_method_handler, "stream_stream"),
}
"""Whether requests and responses stream, to how a handler is made and where it has its function."""


def function_of(handler: grpc.RpcMethodHandler[Any, Any]) -> Any:
    """Return the function that handles calls."""
    return getattr(handler, _KINDS[handler.request_streaming, handler.response_streaming][1])


def with_function(
    handler: grpc.RpcMethodHandler[Any, Any], function: Any, **changes: Any
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return `handler` with another function, and with other serializers where `changes` has them."""
    make_handler, _ = _KINDS[handler.request_streaming, handler.response_streaming]
    serializers = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }
    return make_handler(function, **{**serializers, **changes})
