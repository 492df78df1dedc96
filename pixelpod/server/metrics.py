"""Serving /metrics over HTTP, for Prometheus."""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

from pixelpod.server.transport import AddressInUse

CLOSE_POLL_SECONDS = 0.1
"""How often the thread of the HTTP server looks whether it shall end."""


class MetricsServer:
    """Serves a registry over HTTP on a thread of its own, so that a scrape never waits for the event loop."""

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        """Listen on `address`, host:port.

        Raises:
            AddressInUse: if the address can't be had.
        """
        host, _, port = address.rpartition(":")
        try:
            self._server = make_server(
                host, int(port), make_wsgi_app(registry), _ExclusiveServer, handler_class=_QuietHandler
            )
        except OSError as error:
            raise AddressInUse(f"cannot listen on {address}: {error.strerror}") from error
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(CLOSE_POLL_SECONDS,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port. Waits for the thread, about `CLOSE_POLL_SECONDS`."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _ExclusiveServer(ThreadingWSGIServer):
    # Newer Pythons' HTTPServer would share the port with another process.
    allow_reuse_port = False


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Write no line per scrape."""
