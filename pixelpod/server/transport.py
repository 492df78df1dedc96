"""How Pixelpod's servers listen: one owner per port, pings allowed, and an address in use said plainly."""

from __future__ import annotations

import grpc

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    # Without this, two servers started on one port would silently share its callers.
    ("grpc.so_reuseport", 0),
    # Clients may ping every 10 s, also without a call; gRPC's default of 5 minutes answers them with GOAWAY.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
"""Options of every gRPC server of ours."""


class AddressInUse(Exception):
    """The address can't be listened on: taken by another process, or not of this machine."""


def listen(server: grpc.aio.Server, address: str) -> int:
    """Let `server` listen on `address` ("host:port", port 0 for any free one) and return the port.

    Raises:
        AddressInUse: if the address can't be had.
    """
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise AddressInUse(f"cannot listen on {address}: in use, or no address of this machine") from error
    if port == 0:
        raise AddressInUse(f"cannot listen on {address}: in use, or no address of this machine")
    return port
