"""TLS and tokens as callers give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pixelpod.client import AsyncClient, Client, UnauthenticatedError, UnavailableError
from tests.certificates import Authority
from tests.pixelpod.client.conftest import Caller
from tests.pixelpod.stub_server import StubServer
from tests.tokens import entry, write_tokens


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def serve(tmp_path: Path, authority: Authority) -> Iterator[Callable[..., StubServer]]:
    """Return a function that starts a server with a tokens file, and TLS unless told otherwise."""
    with ExitStack() as servers:

        def start(tls: bool = True, **access: object) -> StubServer:
            tokens_file = write_tokens(tmp_path / "tokens.json", entry("shop", "shop-token"))
            if tls:
                pair = authority.issue()
                access |= {"tls_cert_file": pair.cert_file, "tls_key_file": pair.key_file}
            return servers.enter_context(StubServer(tokens_file=tokens_file, **access))

        yield start


def test_tls_and_a_token_on_every_call(serve: Callable[..., StubServer], caller: Caller, authority: Authority) -> None:
    server = serve()
    caller.connection = {"tls_ca_file": authority.file, "token": "shop-token"}
    assert caller.generate(server.address).images[0].data == b"an image"
    caller.stream(server.address)
    caller.models(server.address)
    assert server.callers == ["shop"] * 3


def test_an_authority_that_is_not_believed(
    serve: Callable[..., StubServer], caller: Caller, authority: Authority, tmp_path: Path
) -> None:
    server = serve()
    for connection in ({"tls": True}, {"tls_ca_file": str(Authority(tmp_path, "stranger").file)}, {}):
        caller.connection = {"token": "shop-token", **connection}
        with pytest.raises(UnavailableError):
            caller.models(server.address)


def test_mutual_tls(serve: Callable[..., StubServer], caller: Caller, authority: Authority) -> None:
    server = serve(tls_client_ca_file=authority.file)
    own = authority.issue("shop.example")
    caller.connection = {"tls_ca_file": authority.file, "token": "shop-token"}
    with pytest.raises(UnavailableError):
        caller.models(server.address)
    caller.connection = {**caller.connection, "tls_cert_file": own.cert_file, "tls_key_file": own.key_file}
    assert caller.models(server.address) == []


def test_a_token_in_plain_text_on_this_machine(serve: Callable[..., StubServer], caller: Caller) -> None:
    server = serve(tls=False)
    with pytest.raises(UnauthenticatedError, match="needs a token") as refused:
        caller.generate(server.address)
    assert refused.value.reason == "TOKEN_MISSING"
    caller.connection = {"token": "shop-token"}
    assert caller.generate(server.address).images
    assert server.callers == ["shop"]


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("address", ["192.0.2.1:1", "images.example:1", "0.0.0.0:1"])
def test_a_token_does_not_leave_this_machine_in_plain_text(client: Any, address: str) -> None:
    with pytest.raises(ValueError, match=f"on its way to {address}") as refused:
        client(address, token="shop-token")
    assert "shop-token" not in str(refused.value)


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("token", ["", "two\nlines", "shop-token\n", "tokén"])
def test_what_is_no_token_is_refused_without_telling_it(client: Any, token: str) -> None:
    with pytest.raises(ValueError, match="the token is empty, or has characters") as refused:
        client("127.0.0.1:1", token=token)
    assert not token or token not in str(refused.value)


async def test_but_where_the_network_encrypts_it_may(authority: Authority) -> None:
    Client("192.0.2.1:1", token="t", insecure=True).close()
    Client("192.0.2.1:1", token="t", tls=True).close()
    await AsyncClient("192.0.2.1:1", token="t", tls_ca_file=authority.file).close()


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_files_that_are_missing_are_named(client: Any, authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        client("127.0.0.1:1", tls_ca_file=tmp_path / "absent")
    with pytest.raises(ValueError, match="go together"):
        client("127.0.0.1:1", tls_cert_file=authority.issue().cert_file)
