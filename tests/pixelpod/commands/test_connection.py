"""TLS and tokens on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.pixelpod.commands.conftest import Run
from tests.pixelpod.stub_server import StubServer
from tests.tokens import entry, write_tokens


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(tmp_path: Path, authority: Authority) -> Iterator[StubServer]:
    """A server with mutual TLS and tokens."""
    pair = authority.issue()
    with StubServer(
        tls_cert_file=pair.cert_file,
        tls_key_file=pair.key_file,
        tls_client_ca_file=authority.file,
        tokens_file=write_tokens(tmp_path / "tokens.json", entry("shop", "shop-token")),
    ) as server:
        yield server


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("shop-token\n")
    return file


def test_options_of_both_commands(
    run: Run, server: StubServer, authority: Authority, token_file: Path, tmp_path: Path
) -> None:
    own = authority.issue("shop.example")
    options = (
        *("--server", server.address, "--tls-ca", str(authority.file), "--token-file", str(token_file)),
        *("--tls-cert", str(own.cert_file), "--tls-key", str(own.key_file)),
    )
    assert run("models", *options).exit_code == 0
    assert run("generate", "a fox", "-o", str(tmp_path / "fox.png"), *options).exit_code == 0
    assert server.callers == ["shop", "shop"]


def test_everything_from_the_environment(
    run: Run, server: StubServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = authority.issue("shop.example")
    for name, value in {
        "SERVER": server.address,
        "TLS_CA": str(authority.file),
        "TLS_CERT": str(own.cert_file),
        "TLS_KEY": str(own.key_file),
        "TOKEN": "shop-token",
    }.items():
        monkeypatch.setenv(f"PIXELPOD_{name}", value)
    assert run("models").exit_code == 0
    monkeypatch.setenv("PIXELPOD_TOKEN", "wrong-token")
    ended = run("models", "--json")
    assert ended.exit_code == 2
    assert ended.json["error"]["reason"] == "TOKEN_UNKNOWN"
    assert b"wrong-token" not in ended.stdout


def test_what_can_not_work_is_refused(run: Run, token_file: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for options, complaint in (
        (("--token-file", str(tmp_path / "empty")), "the token is empty"),
        (("--token-file", str(tmp_path / "absent")), "absent can't be read"),
        (("--tls-ca", str(tmp_path / "absent")), "No such file"),
        (("--tls-cert", str(token_file)), "go together"),
        (("--server", "192.0.2.1:1", "--token-file", str(token_file)), "on its way to 192.0.2.1:1"),
    ):
        ended = run("models", *options)
        assert ended.exit_code == 2
        assert complaint in ended.stderr
        assert "shop-token" not in ended.stderr


def test_insecure_lets_a_token_leave(run: Run, token_file: Path) -> None:
    options = ("--server", "192.0.2.1:1", "--token-file", str(token_file), "--insecure", "--deadline", "0.1")
    assert run("models", *options).exit_code == 4
