"""An HTTP server for strangers: a bounded number of threads, a bounded time for each connection, TLS if wanted.

Each connection has a thread. Where all threads are taken, the connection that has waited longest for its own request
makes room, so that peers who only connect keep nobody out.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from prometheus_client.exposition import ThreadingWSGIServer

from pixelpod.server.reloading import Reloaded

logger = logging.getLogger(__name__)

THREADS = 16
"""Connections at a time. A scrape takes some milliseconds."""
CONNECTION_SECONDS = 10.0
"""How long a connection may take in all, handshake included: as long as Prometheus waits for a scrape by default."""
STALLED_SECONDS = 1.0
"""A connection whose answer takes longer makes room too, when there is none: its peer does not read."""
HANDOVER_SECONDS = 0.5
"""How long a new connection waits for the thread of one that was cut for it."""
ACCEPT_PAUSE_SECONDS = 0.2
"""Before the next try when a connection can't be taken, which is for want of file descriptors."""

_BACKLOG = 128
"""Connections that the kernel holds until they are taken."""


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    since: float
    asked: bool = False
    """Whether its request has been read."""
    cut: bool = False
    """Whether its thread has been told to end it."""


class BoundedServer(ThreadingWSGIServer):
    """Serves HTTP on `address` once `serve_forever` runs.

    Args:
        address: Host and port.
        handler: Of requests; it calls `request_read`.
        certificates: For TLS; None for plain text.
        on_closed: Called with the reason whenever a limit closes a connection: `slow`, `room` or `full`.

    Raises:
        OSError: if the address can't be had.
    """

    allow_reuse_port = False  # newer Pythons' HTTPServer would share the port with another process
    request_queue_size = _BACKLOG

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        certificates: Reloaded[ssl.SSLContext] | None,
        on_closed: Callable[[str], None],
    ) -> None:
        families = {found[0] for found in socket.getaddrinfo(*address, type=socket.SOCK_STREAM)}
        self.address_family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
        self._certificates = certificates
        self._refreshing = threading.Lock()
        self._on_closed = on_closed
        self._free = threading.Semaphore(THREADS)
        self._lock = threading.Lock()
        self._open: dict[int, _Connection] = {}
        """By the threads that serve them, the oldest first."""
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind as HTTPServer does, without asking DNS for the name of this machine."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Take a connection. After a failure it pauses: the listening socket stays readable, and would be tried again
        at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(ACCEPT_PAUSE_SECONDS)
            raise

    def service_actions(self) -> None:
        """Cut the connections whose time is over. `serve_forever` calls this at every poll."""
        began_before = time.monotonic() - CONNECTION_SECONDS
        with self._lock:
            slow = [connection for connection in self._open.values() if connection.since < began_before]
        for connection in slow:
            self._cut(connection, "slow")

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread of its own, or close it."""
        if not self._free.acquire(blocking=False) and not self._make_room():
            self._on_closed("full")
            self.shutdown_request(request)
            return
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name="metrics request", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the machine has no more threads
            self._free.release()
            self._on_closed("full")
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection. What a peer breaks is nobody else's affair, and no line in the log."""
        connection = _Connection(request, time.monotonic())
        with self._lock:
            self._open[threading.get_ident()] = connection
        try:
            self._encrypt(connection)
            self.finish_request(connection.socket, client_address)
        except (OSError, ValueError) as error:
            logger.debug("a connection broke", extra={"error": type(error).__name__})
        except Exception:
            logger.exception("an HTTP request failed")
        finally:
            with self._lock:
                del self._open[threading.get_ident()]
            self.shutdown_request(connection.socket)
            self._free.release()

    def request_read(self) -> None:
        """Note that the request of the calling thread's connection has been read: from now on it makes no room."""
        with self._lock:
            self._open[threading.get_ident()].asked = True

    def server_close(self) -> None:
        """Free the port, and cut what is still served."""
        super().server_close()
        with self._lock:
            connections = list(self._open.values())
        for connection in connections:
            self._cut(connection)

    def _encrypt(self, connection: _Connection) -> None:
        """Do the TLS handshake, if there is TLS, with the certificates that the files hold now.

        Raises:
            OSError: if the peer does not follow, or shows no certificate where it must.
        """
        if self._certificates is None:
            return
        if self._refreshing.acquire(blocking=False):  # else another thread is at it, maybe held up by the disk
            try:
                self._certificates.refresh()
            finally:
                self._refreshing.release()
        context = self._certificates.value
        connection.socket = context.wrap_socket(connection.socket, server_side=True, do_handshake_on_connect=False)
        connection.socket.do_handshake()

    def _make_room(self) -> bool:
        """Cut the oldest connection without a request, or else one that stalls; tell whether its thread is free now."""
        stalled_before = time.monotonic() - STALLED_SECONDS
        with self._lock:
            connections = list(self._open.values())
        waiting = [connection for connection in connections if not connection.asked]
        stalled = [connection for connection in connections if connection.since < stalled_before]
        if not (candidates := waiting or stalled):
            return False
        self._cut(candidates[0], "room")
        return self._free.acquire(timeout=HANDOVER_SECONDS)

    def _cut(self, connection: _Connection, reason: str | None = None) -> None:
        """Wake the connection's thread with an end of data; the thread does the rest."""
        with self._lock:  # the thread closes its socket only after it left the list
            if connection.cut or connection not in self._open.values():
                return
            connection.cut = True
            with suppress(OSError):  # the peer was faster
                # Not SSLSocket's own, which would take the TLS state away under its thread.
                socket.socket.shutdown(connection.socket, socket.SHUT_RDWR)
        if reason is not None:
            self._on_closed(reason)
