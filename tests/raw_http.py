"""HTTP and TCP by hand, for what no client library would send."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

WAIT_SECONDS = 10.0

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""What every HTTP/2 client begins with: the preface and empty SETTINGS (RFC 9113, 3.4)."""


class Reply(NamedTuple):
    """What came back until the server closed the connection."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes


def http(port: int, head: str | bytes, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Reply:
    """Send these bytes to a port of this machine and return the reply; over TLS if there is a context."""
    with socket.create_connection((host, port), timeout=WAIT_SECONDS) as connection:
        if context is None:
            return _exchange(connection, head)
        with context.wrap_socket(connection, server_hostname=host) as encrypted:
            return _exchange(encrypted, head)


def get(port: int, path: str = "/metrics", *headers: str, context: ssl.SSLContext | None = None) -> Reply:
    """GET a path from a port of this machine."""
    return http(port, "".join(f"{line}\r\n" for line in (f"GET {path} HTTP/1.1", *headers, "")), context)


@contextmanager
def connections(
    port: int, number: int, *, first_bytes: bytes = b"", source: str = "127.0.0.1"
) -> Iterator[list[socket.socket]]:
    """Hold connections to a port of this machine that send a few bytes and then nothing.

    Args:
        port: Where.
        number: How many.
        first_bytes: What each sends.
        source: The loopback address that they come from.
    """
    with ExitStack() as stack:
        opened = []
        for _ in range(number):
            connection = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS, (source, 0))
            opened.append(stack.enter_context(connection))
            try:
                connection.sendall(first_bytes)
            except OSError:  # closed already: the server's right
                continue
        yield opened


def seconds_until_closed(connection: socket.socket, limit_seconds: float = WAIT_SECONDS) -> float:
    """Read from a connection until the other side closes it; fail if that takes longer than the limit."""
    began = time.monotonic()
    connection.settimeout(limit_seconds)
    try:
        while connection.recv(65536):
            assert time.monotonic() - began < limit_seconds, "the server goes on sending"
    except ConnectionError:
        pass
    except TimeoutError:
        raise AssertionError(f"still open after {limit_seconds} s") from None
    return time.monotonic() - began


def is_closed(connection: socket.socket) -> bool:
    """Tell whether the other side closed the connection by now; reads what is there."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def _exchange(connection: socket.socket, head: str | bytes) -> Reply:
    connection.sendall(head.encode("latin-1") if isinstance(head, str) else head)
    received = b""
    while piece := connection.recv(65536):
        received += piece
    top, _, body = received.partition(b"\r\n\r\n")
    status_line, *lines = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Reply(int(status_line.split()[1]) if status_line else 0, headers, body)
