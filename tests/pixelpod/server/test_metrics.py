"""/metrics: what it answers, to whom, and what peers cost that are slow, broken or too many."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from pixelpod.server import bounded_http
from pixelpod.server.bounded_http import CONNECTION_SECONDS, THREADS
from pixelpod.server.metrics import MetricsServer
from pixelpod.server.transport import AddressInUse
from tests.e2e.processes import wait_until
from tests.raw_http import Reply, connections, get, http, seconds_until_closed


@pytest.fixture
def server(serve_metrics: Callable[..., MetricsServer]) -> MetricsServer:
    return serve_metrics()


def _is_metrics(reply: Reply) -> bool:
    (family,) = text_string_to_metric_families(reply.body.decode())
    return reply.status == 200 and family.samples[0].value == 42


def test_second_server_on_one_port_is_refused() -> None:
    server = MetricsServer("127.0.0.1:0", CollectorRegistry())
    try:
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{server.port}"):
            MetricsServer(f"127.0.0.1:{server.port}", CollectorRegistry())
    finally:
        server.close()


def test_closed_server_frees_its_port() -> None:
    server = MetricsServer("127.0.0.1:0", CollectorRegistry())
    server.close()
    MetricsServer(f"127.0.0.1:{server.port}", CollectorRegistry()).close()


def test_listens_on_ipv6_too(registry: CollectorRegistry) -> None:
    server = MetricsServer("[::1]:0", registry)
    try:
        assert _is_metrics(http(server.port, "GET /metrics HTTP/1.1\r\n\r\n", host="::1"))
    finally:
        server.close()


@pytest.mark.parametrize("path", ["/metrics", "/metrics?name[]=answer"])
def test_get(server: MetricsServer, path: str) -> None:
    assert _is_metrics(get(server.port, path))


def test_head_is_get_without_the_body(server: MetricsServer) -> None:
    reply, whole = http(server.port, "HEAD /metrics HTTP/1.1\r\n\r\n"), get(server.port)
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["content-type"] == whole.headers["content-type"]
    assert reply.headers["content-length"] == str(len(whole.body))


@pytest.mark.parametrize("path", ["/", "/metrics/", "/favicon.ico", "/x?/metrics", "*"])
def test_other_paths_are_not_found(server: MetricsServer, path: str) -> None:
    assert get(server.port, path).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_not_allowed(server: MetricsServer, method: str) -> None:
    reply = http(server.port, f"{method} /metrics HTTP/1.1\r\n\r\n")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=x",
        "application/openmetrics-text; version=1.x",
        "text/plain; version=x.y",
        "text/plain; version=; escaping=",
        "text/plain; version=1.0.0; escaping=\xff\xfe",
        "application/openmetrics-text; version=99\xe9.0",
        "application/json",
        ",;=,",
        "text/plain;" * 500,
    ],
)
def test_an_odd_accept_header_gets_text(server: MetricsServer, accept: str) -> None:
    reply = get(server.port, "/metrics", f"Accept: {accept}")
    assert _is_metrics(reply)
    assert reply.headers["content-type"].startswith(("text/plain", "application/openmetrics-text"))


def test_openmetrics_where_it_is_asked_for(server: MetricsServer) -> None:
    reply = get(server.port, "/metrics", "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.1")
    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert reply.body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /metrics" + "x" * 20_000 + " HTTP/1.1\r\n\r\n", 431),
        ("GET /metrics HTTP/1.1\r\n" + "X: y\r\n" * 99 + "Z: " + "z" * 20_000 + "\r\n\r\n", 431),
        ("GET /metrics HTTP/1.1\r\n" + "X: y\r\n" * 1000 + "\r\n", 431),
        ("nonsense\r\n\r\n", 400),
        ("GET /metrics HTTP/9.9\r\n\r\n", 505),
    ],
)
def test_unreasonable_requests_are_refused(
    server: MetricsServer, head: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert http(server.port, head).status == status
    assert capfd.readouterr().err == ""


def _threads() -> int:
    return sum(thread.name.startswith("metrics request") for thread in threading.enumerate())


@pytest.mark.parametrize("first_bytes", [b"", b"GET /metrics HTTP/1.1\r\nX: y"], ids=["silent", "slow"])
def test_slow_peers_are_bounded_and_make_room(
    server: MetricsServer, closed: Counter[str], first_bytes: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with connections(server.port, 200, first_bytes=first_bytes):
        assert _is_metrics(get(server.port))
        assert _threads() <= THREADS
        assert closed["room"] >= 200 - THREADS
    wait_until(lambda: _threads() == 0, CONNECTION_SECONDS, lambda: f"{_threads()} threads")
    assert capfd.readouterr().err == ""


def test_peers_that_do_not_read_make_room(
    serve_metrics: Callable[..., MetricsServer],
    registry: CollectorRegistry,
    closed: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bounded_http, "STALLED_SECONDS", 0.2)
    monkeypatch.setattr(bounded_http, "HANDOVER_SECONDS", 10.0)
    Gauge("large", "x" * 20_000_000, registry=registry)  # more than sockets hold
    server = serve_metrics()
    with connections(server.port, THREADS, first_bytes=b"GET /metrics HTTP/1.1\r\n\r\n"):
        wait_until(lambda: _threads() == THREADS, 10, lambda: f"{_threads()} threads")
        refused: list[Reply] = []

        def answered() -> bool:
            with suppress(ConnectionError):
                refused.append(get(server.port, "/other"))
            return bool(refused) and refused[-1].status == 404

        wait_until(answered, 10, lambda: f"no room: {refused}")
    assert closed["room"] >= 1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("drip", [False, True], ids=["silent", "dripping"])
def test_a_connection_has_bounded_time(
    server: MetricsServer, closed: Counter[str], monkeypatch: pytest.MonkeyPatch, drip: bool
) -> None:
    monkeypatch.setattr(bounded_http, "CONNECTION_SECONDS", 0.5)
    with connections(server.port, 1, first_bytes=b"GET /metrics HTTP/1.1\r\n") as (connection,):
        done = threading.Event()

        def send_on() -> None:
            with suppress(OSError):
                while drip and not done.wait(0.05):
                    connection.sendall(b"X")

        thread = threading.Thread(target=send_on)
        thread.start()
        try:
            assert 0.4 < seconds_until_closed(connection) < 3
        finally:
            done.set()
            thread.join()
    wait_until(lambda: closed == {"slow": 1}, 10, lambda: f"counted: {closed}")  # the peer sees it a moment before


def test_want_of_descriptors_does_not_spin(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def accept(self: socket.socket) -> None:
        tries.append(self)
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(socket.socket, "accept", accept)
        with socket.create_connection(("127.0.0.1", server.port)) as waiting:
            wait_until(lambda: len(tries) >= 2, 10, lambda: "never tried again")
            before = len(tries)
            threading.Event().wait(1)
            assert len(tries) - before <= 1 / bounded_http.ACCEPT_PAUSE_SECONDS + 1
            patched.undo()
            waiting.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert waiting.recv(12) == b"HTTP/1.0 200"


def test_a_collector_that_fails_is_logged(
    server: MetricsServer, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    Gauge("broken", "Fails.", registry=registry).set_function(lambda: 1 / 0)
    assert get(server.port).status == 500
    assert "ZeroDivisionError" in caplog.text


def test_close_cuts_what_is_under_way(registry: CollectorRegistry) -> None:
    server = MetricsServer("127.0.0.1:0", registry)
    with connections(server.port, 3) as opened:
        wait_until(lambda: _threads() == 3, 10, lambda: f"{_threads()} threads")
        server.close()
        assert max(map(seconds_until_closed, opened)) < CONNECTION_SECONDS / 2
