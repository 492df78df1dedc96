"""Where the endpoint listens, and whom it answers: tokens and TLS."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from pixelpod.server.errors import from_call
from pixelpod.server.reloading import FileRefused
from pixelpod.server.transport import AddressInUse, PlainTextRefused
from pixelpod.v1 import group_pb2_grpc
from tests.certificates import Authority
from tests.e2e.processes import SERVING, wait_until
from tests.tokens import bearer, entry, write_tokens
from tests.workers.endpoint.served import WAIT_SECONDS, Served
from tests.workers.models import make_request


def test_an_address_in_use_is_refused(serve: Callable[..., Served]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(AddressInUse, match=str(port)):
            serve(listen=f"127.0.0.1:{port}")


def test_plain_text_beyond_loopback_is_refused(serve: Callable[..., Served]) -> None:
    with pytest.raises(PlainTextRefused, match="is not loopback"):
        serve(listen="0.0.0.0:0")


def _ending(call: Any) -> str:
    with pytest.raises(grpc.RpcError) as refused:
        next(call)
    error = from_call(refused.value)
    return f"{refused.value.code().name} {error.reason}"


def test_frontends_need_a_token_for_the_model(serve: Callable[..., Served], tmp_path: Path) -> None:
    tokens = (entry("a", "a-token", models=["small"]), entry("b", "b-token", models=["other"]))
    served = serve(tokens_file=write_tokens(tmp_path / "tokens.json", *tokens))
    stub = group_pb2_grpc.WorkerGroupStub(served.channel)

    def execute(*metadata: tuple[str, str]) -> Any:
        return stub.ExecuteStream(make_request(), metadata=metadata, timeout=WAIT_SECONDS)

    assert _ending(execute()) == "UNAUTHENTICATED TOKEN_MISSING"
    assert _ending(execute(*bearer("c-token"))) == "UNAUTHENTICATED TOKEN_UNKNOWN"
    assert _ending(execute(*bearer("b-token"))) == "PERMISSION_DENIED MODEL_NOT_ALLOWED"
    assert _ending(served.watch()) == "UNAUTHENTICATED TOKEN_MISSING"
    wait_until(lambda: served.health() == SERVING, WAIT_SECONDS, lambda: "not serving, or not telling it to anybody")
    call = execute(*bearer("a-token"))
    served.wait_in_flight(1)
    call.cancel()
    assert served.ended("PERMISSION_DENIED") == 1


def test_health_can_need_a_token_too(serve: Callable[..., Served], tmp_path: Path) -> None:
    tokens_file = write_tokens(tmp_path / "tokens.json", entry("a", "a-token"))
    served = serve(tokens_file=tokens_file, health_needs_token=True)
    with pytest.raises(grpc.RpcError) as refused:
        served.health()
    assert from_call(refused.value).reason == "TOKEN_MISSING"


def test_the_endpoint_speaks_tls(serve: Callable[..., Served], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue()
    served = serve(tls_cert_file=pair.cert_file, tls_key_file=pair.key_file)
    assert _ending(served.watch()) == "UNAVAILABLE UNAVAILABLE"
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes())
    with grpc.secure_channel(served.address, credentials) as channel:
        served.channel = channel
        wait_until(lambda: served.health() == SERVING, WAIT_SECONDS, lambda: "not serving")


def test_limits_of_callers_are_not_for_groups(serve: Callable[..., Served], tmp_path: Path) -> None:
    tokens_file = write_tokens(tmp_path / "tokens.json", entry("a", "a-token", max_concurrent_requests=1))
    with pytest.raises(FileRefused, match="for frontends"):
        serve(tokens_file=tokens_file)
