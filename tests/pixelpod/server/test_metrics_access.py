"""/metrics over HTTPS: certificates that follow their files, client certificates, handshakes that don't end."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pixelpod.server import bounded_http
from pixelpod.server.bounded_http import THREADS
from pixelpod.server.metrics import MetricsServer
from pixelpod.server.metrics_access import MetricsAccessSettings, metrics_certificates
from pixelpod.server.reloading import FileRefused
from tests.certificates import Authority, Pair
from tests.raw_http import connections, get, seconds_until_closed


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def _files(pair: Pair, client_ca: Path | None = None) -> dict[str, Path]:
    files = {"metrics_tls_cert_file": pair.cert_file, "metrics_tls_key_file": pair.key_file}
    return files if client_ca is None else {**files, "metrics_tls_client_ca_file": client_ca}


def _context(authority: Authority, shown: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    if shown is not None:
        context.load_cert_chain(shown.cert_file, shown.key_file)
    return context


def _check_scrape(server: MetricsServer, context: ssl.SSLContext) -> None:
    reply = get(server.port, context=context)
    assert reply.status == 200
    assert b"\nanswer 42.0\n" in reply.body


def test_https(
    serve_metrics: Callable[..., MetricsServer], authority: Authority, capfd: pytest.CaptureFixture[str]
) -> None:
    server = serve_metrics(**_files(authority.issue()))
    _check_scrape(server, _context(authority))
    with suppress(OSError, ValueError):  # plain text gets no answer in plain text
        assert get(server.port).status == 0
    assert capfd.readouterr().err == ""


def test_half_open_handshakes_make_room(
    serve_metrics: Callable[..., MetricsServer], authority: Authority, closed: Counter[str]
) -> None:
    server = serve_metrics(**_files(authority.issue()))
    with connections(server.port, 100, first_bytes=b"\x16\x03\x01"):
        _check_scrape(server, _context(authority))
    assert closed["room"] >= 100 - THREADS


def test_a_handshake_has_bounded_time(
    serve_metrics: Callable[..., MetricsServer], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "CONNECTION_SECONDS", 0.5)
    server = serve_metrics(**_files(authority.issue()))
    with connections(server.port, 1, first_bytes=b"\x16\x03\x01") as (connection,):
        assert seconds_until_closed(connection) < 3


def test_mutual_tls(serve_metrics: Callable[..., MetricsServer], authority: Authority, tmp_path: Path) -> None:
    server = serve_metrics(**_files(authority.issue(), authority.file))
    _check_scrape(server, _context(authority, authority.issue("prometheus")))
    stranger = Authority(tmp_path, "stranger").issue("prometheus")
    for shown in (None, stranger):
        with pytest.raises(OSError, match=r"(?i)certificate|alert|reset|eof"):
            get(server.port, context=_context(authority, shown))


def test_new_certificates_are_taken(
    serve_metrics: Callable[..., MetricsServer], authority: Authority, tmp_path: Path
) -> None:
    pair, other = authority.issue(), Authority(tmp_path, "other")
    server = serve_metrics(**_files(pair))
    _check_scrape(server, _context(authority))
    pair.replace_by(other.issue())
    _check_scrape(server, _context(other))


def test_files_that_can_not_be_used_are_refused(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue(), Authority(tmp_path, "other").issue()
    for files in (
        _files(Pair(pair.cert_file, other.key_file)),
        _files(Pair(pair.cert_file, tmp_path / "missing")),
        _files(pair, pair.key_file),
    ):
        with pytest.raises(FileRefused, match=r"PEM|missing: No such file"):
            metrics_certificates(MetricsAccessSettings(**files))


@pytest.mark.parametrize("field", ["metrics_tls_cert_file", "metrics_tls_key_file", "metrics_tls_client_ca_file"])
def test_files_that_belong_together(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        MetricsAccessSettings(**{field: Path("file")})
