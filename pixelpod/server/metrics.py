"""Serving /metrics over HTTP or HTTPS, for Prometheus."""

from __future__ import annotations

import io
import logging
import ssl
import threading
from collections.abc import Callable, Iterable
from typing import Any, cast
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, make_wsgi_app

from pixelpod.server.bounded_http import BoundedServer
from pixelpod.server.reloading import Reloaded
from pixelpod.server.transport import AddressInUse

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
"""How often the HTTP server's thread checks whether to stop, and which connections took too long."""

REQUEST_BYTES = 16 * 1024
"""The largest request, all its headers included."""

PATH = "/metrics"
ALLOWED = ("GET", "HEAD")

_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class MetricsServer:
    """Serves a registry on threads of its own, so that a scrape never waits for the event loop.

    Args:
        address: Where, host:port.
        registry: What is served.
        certificates: For HTTPS; None for HTTP. It is refreshed at every connection.
        on_closed: Called, on any thread, with the reason whenever a limit closes a connection.

    Raises:
        AddressInUse: if the address can't be had.
    """

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        certificates: Reloaded[ssl.SSLContext] | None = None,
        on_closed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        host, _, port = address.rpartition(":")
        try:
            self._server = BoundedServer((host.strip("[]"), int(port)), _Handler, certificates, on_closed)
        except OSError as error:
            raise AddressInUse(f"cannot listen on {address}: {error.strerror}") from error
        self._server.set_app(_application(registry))
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_SECONDS,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port. Waits for the accepting thread, about `POLL_SECONDS`."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _application(registry: CollectorRegistry) -> _Application:
    """Return prometheus_client's application, narrowed: one path, two methods, an answer to any Accept header."""
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != PATH:
            return _refuse(start_response, "404 Not Found")
        if environ["REQUEST_METHOD"] not in ALLOWED:
            return _refuse(start_response, "405 Method Not Allowed", ("Allow", ", ".join(ALLOWED)))
        asked = {**environ, "REQUEST_METHOD": "GET"}
        if not _understood(asked.get("HTTP_ACCEPT")):
            del asked["HTTP_ACCEPT"]
        started: list[tuple[str, list[tuple[str, str]]]] = []
        try:
            body = b"".join(metrics(asked, lambda status, headers: started.append((status, headers))))
        except Exception:
            logger.exception("the metrics can't be collected")
            return _refuse(start_response, "500 Internal Server Error")
        status, headers = started[0]
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return answer


def _understood(accept: str | None) -> bool:
    """Tell whether prometheus_client finds a format for this Accept header; it raises where a version is no number."""
    try:
        choose_encoder(accept or "")
    except (TypeError, ValueError):
        return False
    return True


def _refuse(start_response: Callable[..., Any], status: str, *headers: tuple[str, str]) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
    return [f"{status}: GET or HEAD {PATH}\n".encode()]


class _LimitedReader(io.BufferedIOBase):
    """Reads lines from a connection, and ends after `REQUEST_BYTES`."""

    def __init__(self, connection: io.BufferedIOBase) -> None:
        self._connection = connection
        self.left_bytes = REQUEST_BYTES

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the next line, or what the limit leaves of it."""
        wanted = self.left_bytes if size is None or size < 0 else min(size, self.left_bytes)
        line = self._connection.readline(wanted)
        self.left_bytes -= len(line)
        return line

    def close(self) -> None:
        """Close the connection's file."""
        self._connection.close()
        super().close()


class _Handler(WSGIRequestHandler):
    default_request_version = "HTTP/1.0"  # of what can't be parsed; with 0.9, errors would have no status line

    def setup(self) -> None:
        super().setup()
        self.rfile = _LimitedReader(self.rfile)

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if cast(_LimitedReader, self.rfile).left_bytes == 0:
            self.send_error(431)
            return False
        cast(BoundedServer, self.server).request_read()
        return True

    def finish(self) -> None:
        """Read what came and was not asked for: closing a socket with unread data would take the answer back."""
        self.connection.setblocking(False)
        try:
            self.connection.recv(REQUEST_BYTES * 4)
        except OSError:  # there is nothing
            pass
        finally:
            self.connection.setblocking(True)
        super().finish()

    def get_stderr(self) -> Any:
        return io.StringIO()  # wsgiref would print a traceback for every peer that leaves early

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Write no line per request."""
