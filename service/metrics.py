"""What Prometheus reads of a frontend."""

from __future__ import annotations

import platform
import threading
from importlib.metadata import version
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

from pixelpod.server.transport import AddressInUse
from service.group_connection import CONTRACT_VERSION, Availability, GroupConnection

SECONDS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 45, 60, 90, 120, 180, 300, 450, 600)
"""From a refusal to the longest request allowed by default."""

CLOSE_POLL_SECONDS = 0.1
"""How often the thread of the HTTP server looks whether it shall end."""

UNKNOWN_MODEL = "unknown"
"""The model label of requests that named no model served: callers must not make label values."""


class FrontendMetrics:
    """The metrics of one frontend, in a registry of their own. All names begin with pixelpod_frontend_."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "pixelpod_frontend_requests", "Requests ended, by status code.", ["model", "code"], registry=registry
        )
        self.request_seconds = Histogram(
            "pixelpod_frontend_request_seconds",
            "From arrival to the ending.",
            ["model"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "pixelpod_frontend_queue_seconds",
            "From arrival until a group began to compute; requests that succeeded.",
            ["model"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.in_flight = Gauge("pixelpod_frontend_in_flight", "Requests arrived and not yet ended.", registry=registry)
        self.group_up = Gauge(
            "pixelpod_frontend_group_up", "1 while the group takes requests.", ["address"], registry=registry
        )
        self.group_state = Enum(
            "pixelpod_frontend_group_state",
            "What the group is to this frontend.",
            ["address"],
            states=[str(availability) for availability in Availability],
            registry=registry,
        )
        build = Info("pixelpod_frontend_build", "What is running.", registry=registry)
        build.info(
            {
                "version": version("pixelpod"),
                "python": platform.python_version(),
                "contract_version": str(CONTRACT_VERSION),
            }
        )

    def show_group(self, group: GroupConnection) -> None:
        """Set the gauges of one group to what it is now."""
        self.group_up.labels(group.address).set(int(group.ready))
        self.group_state.labels(group.address).state(str(group.availability))


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
