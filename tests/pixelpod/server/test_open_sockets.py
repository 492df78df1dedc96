"""The process's accepted connections are found by port, and cut without harm to other files."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import pytest

from pixelpod.server.open_sockets import Accepted, AcceptedConnections, Peer, cut, peer_of


@pytest.fixture(params=["127.0.0.1", "::1", "::"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A caller's socket, and the accepted one. A server on "::" is called by IPv4."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family, dualstack_ipv6=request.param == "::") as server:
        host = "127.0.0.1" if request.param == "::" else request.param
        with socket.create_connection((host, server.getsockname()[1])) as caller:
            accepted, _ = server.accept()
            with accepted:
                yield caller, accepted


def _found(accepted: socket.socket) -> Accepted:
    (found,) = AcceptedConnections(accepted.getsockname()[1]).scan()
    return found


def test_accepted_connections_are_found_and_no_others(pair: tuple[socket.socket, socket.socket]) -> None:
    caller, accepted = pair
    connections = AcceptedConnections(accepted.getsockname()[1])
    before = time.monotonic()
    (found,) = connections.scan()
    assert (found.peer, found.descriptor) == (Peer(*caller.getsockname()[:2]), accepted.fileno())
    assert before <= found.seen <= time.monotonic()
    assert connections.scan() == [found]
    assert AcceptedConnections(1).scan() == []
    accepted.close()
    assert connections.scan() == []


def test_a_connection_is_cut(pair: tuple[socket.socket, socket.socket]) -> None:
    caller, accepted = pair
    open_before = len(os.listdir("/proc/self/fd"))
    assert cut(_found(accepted))
    assert (caller.recv(1), accepted.recv(1)) == (b"", b"")
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_what_has_its_number_later_is_not_cut(pair: tuple[socket.socket, socket.socket]) -> None:
    caller, accepted = pair
    open_before = len(os.listdir("/proc/self/fd"))
    found = _found(accepted)
    assert not cut(found._replace(inode=found.inode + 1))
    assert not cut(found._replace(descriptor=max(map(int, os.listdir("/proc/self/fd"))) + 100))
    caller.sendall(b"x")
    assert accepted.recv(1) == b"x"
    assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("ipv4:192.0.2.1:50000", Peer("192.0.2.1", 50000)),
        ("ipv6:%5B2001:db8::1%5D:50000", Peer("2001:db8::1", 50000)),
        ("ipv6:[::1]:50000", Peer("::1", 50000)),
        ("ipv6:%5Bfe80::1%252%5D:50000", Peer("fe80::1", 50000)),
        ("ipv6:%5B::ffff:192.0.2.1%5D:50000", Peer("192.0.2.1", 50000)),
        ("unix:", Peer("unix:", 0)),
    ],
)
def test_names_of_peers(name: str, peer: Peer) -> None:
    assert peer_of(name) == peer
