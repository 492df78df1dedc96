"""Addresses of servers on this machine, as "host:port"."""

from __future__ import annotations

import socket

import typer

LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""Where to reach a server that listens on every address."""


def reachable(address: str) -> str:
    """Return the address at which this machine reaches a server that listens on `address`."""
    host, _, port = address.rpartition(":")
    return f"{LOOPBACK.get(host, host)}:{port}"


def with_port(address: str, option: str) -> str:
    """Return `address` with a free port in place of port 0.

    Raises:
        typer.BadParameter: if it is no address; names `option`.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise typer.BadParameter(f"{address!r} is no address such as 127.0.0.1:7860.", param_hint=option)
    return address if int(port) else free_address(host)


def free_address(host: str = "127.0.0.1") -> str:
    """Return an address that was free a moment ago. Whoever listens on it must still expect it to be taken."""
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host.strip("[]"), 0))
        return f"{host}:{probe.getsockname()[1]}"
