"""How Pixelpod's servers listen: one owner per port, encrypted unless nobody else can hear, pings allowed."""

from __future__ import annotations

import grpc

from pixelpod.loopback import is_loopback

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    # Without this, two servers started on one port would silently share its callers.
    ("grpc.so_reuseport", 0),
    # Clients may ping every 10 s, also without a call; gRPC's default of 5 minutes answers them with GOAWAY.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
"""Options of every gRPC server of ours."""

AGE_GRACE_MARGIN_SECONDS = 30.0
"""A connection that is past its age is cut this much later than its longest call can end."""


class AddressInUse(Exception):
    """The address can't be listened on: taken by another process, or not of this machine."""


class PlainTextRefused(Exception):
    """Other machines could reach the address, and what they send would travel unencrypted."""


def connection_age_options(age_seconds: float, longest_call_seconds: float) -> tuple[tuple[str, int], ...]:
    """Return server options that ask clients to connect anew after `age_seconds`; calls under way are finished.

    Clients so find servers that came later, and connections end whose certificates were replaced.
    """
    grace_seconds = longest_call_seconds + AGE_GRACE_MARGIN_SECONDS
    return (
        ("grpc.max_connection_age_ms", round(age_seconds * 1000)),
        ("grpc.max_connection_age_grace_ms", round(grace_seconds * 1000)),
    )


def check_plain_text(address: str, insecure: bool) -> None:
    """Check that `address`, "host:port", may be listened on in plain text: on loopback, or where `insecure` allows it.

    Raises:
        PlainTextRefused: if it may not.
    """
    if not insecure and not is_loopback(address):
        raise PlainTextRefused(
            f"{address} is not loopback, and without TLS prompts, images and tokens would be readable on the network: "
            "give a certificate and a key (--tls-cert, --tls-key), listen on 127.0.0.1, or say --insecure"
        )


def listen(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None = None, *, insecure: bool = False
) -> int:
    """Let `server` listen on `address` ("host:port", port 0 for any free one) and return the port.

    Args:
        server: It is not started yet.
        address: Where.
        credentials: For TLS; None for plain text.
        insecure: Whether plain text may be spoken on addresses other than loopback.

    Raises:
        PlainTextRefused: if others could listen in.
        AddressInUse: if the address can't be had.
    """
    if credentials is None:
        check_plain_text(address, insecure)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise AddressInUse(f"cannot listen on {address}: in use, or no address of this machine") from error
    if port == 0:
        raise AddressInUse(f"cannot listen on {address}: in use, or no address of this machine")
    return port
