"""The connections that this process has accepted on one of its ports, by way of Linux' /proc.

gRPC for Python neither lists its connections nor has a hook for accepting them. The process's own table of descriptors
does: a look at it costs a microsecond a descriptor.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

DESCRIPTORS = Path("/proc/self/fd")


class Peer(NamedTuple):
    """The other side of a connection."""

    address: str
    """IP address; IPv4 without its place in IPv6."""
    port: int


class Accepted(NamedTuple):
    """An accepted connection."""

    peer: Peer
    descriptor: int
    inode: int
    """Of the socket. Descriptors are used again, sockets' inodes are not."""
    seen: float
    """When a scan first found it, by time.monotonic."""


class AcceptedConnections:
    """Finds the accepted connections of a listening port."""

    available = DESCRIPTORS.is_dir()
    """Whether this system tells."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._known: dict[tuple[int, int], Accepted | None] = {}
        """All that was open at the last scan, by descriptor and inode; None for what is no connection of the port."""

    def scan(self) -> list[Accepted]:
        """Return the connections open now, in no order.

        Raises:
            OSError: if the process has no descriptor left to look with.
        """
        before, now = self._known, {}
        for name in os.listdir(DESCRIPTORS):
            number = int(name)
            try:
                key = number, os.fstat(number).st_ino
            except OSError:  # closed meanwhile
                continue
            now[key] = before[key] if key in before else self._look_at(*key)
        self._known = now
        return [connection for connection in now.values() if connection is not None]

    def _look_at(self, number: int, inode: int) -> Accepted | None:
        try:
            connection = socket.socket(fileno=number)
        except OSError:  # no socket
            return None
        try:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if connection.getsockname()[1] != self._port:
                return None
            return Accepted(_peer(*connection.getpeername()[:2]), number, inode, time.monotonic())
        except OSError:  # not connected: it listens
            return None
        finally:
            connection.detach()  # it is not ours to close


def cut(accepted: Accepted) -> bool:
    """End a connection as if its peer had; who owns it finds out by reading. Tell whether it was still there."""
    with suppress(OSError):
        # Unlike the original, a duplicate can't become another file's descriptor under our hands.
        duplicate = os.dup(accepted.descriptor)
        if os.fstat(duplicate).st_ino != accepted.inode:
            os.close(duplicate)
            return False
        with socket.socket(fileno=duplicate) as connection:
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def peer_of(name: str) -> Peer:
    """Return the peer that gRPC names, as in "ipv4:192.0.2.1:50000" or "ipv6:%5B2001:db8::1%5D:50000"."""
    address, _, port = unquote(name).partition(":")[2].rpartition(":")
    return _peer(address.strip("[]"), int(port)) if port.isdecimal() else Peer(name, 0)


def _peer(address: str, port: int) -> Peer:
    return Peer(address.partition("%")[0].removeprefix("::ffff:"), port)
