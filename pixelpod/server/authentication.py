"""Who is calling: every call needs a known bearer token, but for those of open services."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc

from pixelpod.server.callers import Caller, TokensFile, enter_caller
from pixelpod.server.errors import Unauthenticated
from pixelpod.server.reloading import Reloaded

TOKEN_KEY = "authorization"
"""The metadata key of a token, whose value is "Bearer TOKEN" (RFC 6750)."""

_SCHEME = "bearer"


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Lets in calls with a token of `tokens`, and makes their caller the current one. Goes after ErrorInterceptor.

    Args:
        tokens: Who may call.
        open_services: Full names of the services that everybody may call.
        on_refusal: Called with the reason whenever a call is refused.
    """

    def __init__(
        self, tokens: Reloaded[TokensFile], open_services: Iterable[str], on_refusal: Callable[[str], None]
    ) -> None:
        self._tokens = tokens
        self._on_refusal = on_refusal
        self._open_services = frozenset(open_services)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Give the call its handler, or one that refuses it."""
        if _service_of(handler_call_details) not in self._open_services:
            try:
                enter_caller(self._authenticate(handler_call_details))
            except Unauthenticated as refusal:
                self._on_refusal(refusal.reason)
                return _refuse(refusal)
        return await continuation(handler_call_details)

    def _authenticate(self, call: grpc.HandlerCallDetails) -> Caller:
        token = _token_of(call)
        if token is None:
            raise Unauthenticated(
                "this server needs a token: send the metadata authorization: Bearer TOKEN", reason="TOKEN_MISSING"
            )
        caller = self._tokens.value.find(token)
        if caller is None:
            raise Unauthenticated(
                "the token is not known here, or no longer; ask who keeps the tokens file for another",
                reason="TOKEN_UNKNOWN",
            )
        return caller


def _service_of(call: grpc.HandlerCallDetails) -> str:
    return call.method.strip("/").rpartition("/")[0]


def _token_of(call: grpc.HandlerCallDetails) -> str | None:
    for key, value in call.invocation_metadata or ():
        if key == TOKEN_KEY and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            return token.strip() if scheme.lower() == _SCHEME else None
    return None


def _refuse(refusal: Unauthenticated) -> grpc.RpcMethodHandler[Any, Any]:
    """Return a handler that ends any kind of call with `refusal`. As a stream's it reads no request: nothing is parsed
    for strangers."""

    async def refuse(requests: object, context: object) -> None:
        raise refusal

    return grpc.stream_stream_rpc_method_handler(refuse)
