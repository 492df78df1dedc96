"""How the clients connect: TLS, a token, retries and keepalive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict, Unpack

import grpc

from pixelpod.loopback import is_loopback

SERVICE = "pixelpod.v1.ImageGeneration"

FIRST_PAUSE_SECONDS = 0.25
LAST_PAUSE_SECONDS = 2.0
PAUSE_FACTOR = 2
"""Pauses between tries grow by this factor from the first to the last."""

SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": SERVICE}],
            # gRPC itself tries again only while no answer has begun (afterwards resumption.py does), keeps within the
            # deadline, and waits as long as the server asks for where it does.
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": f"{FIRST_PAUSE_SECONDS}s",
                "maxBackoff": f"{LAST_PAUSE_SECONDS}s",
                "backoffMultiplier": PAUSE_FACTOR,
                # CANCELLED is what gRPC's servers make of calls that arrive just as they stop, before anybody saw them:
                # https://github.com/grpc/grpc/issues/41785. What a caller cancels itself is not tried again.
                "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
            },
        }
    ]
}
"""See https://github.com/grpc/grpc/blob/master/doc/service_config.md."""

CHANNEL_OPTIONS: tuple[tuple[str, str | int], ...] = (
    ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
    # A peer that vanished without closing its connection is noticed within 30 s, also in a call without deadline.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC's default of two minutes would keep a long-lived client away from a frontend that is back.
    ("grpc.max_reconnect_backoff_ms", 5_000),
)
"""Options of every channel of ours. Message sizes stay gRPC's defaults: image chunks are under 1 MiB."""


class ConnectionOptions(TypedDict, total=False):
    """What a client needs beside an address. What is left out is not needed by the server."""

    tls: bool
    """Whether to encrypt, and to believe the authorities that gRPC comes with; any file below says so too."""
    tls_ca_file: str | Path
    """PEM file with the authorities whose servers are believed, instead of those that gRPC comes with."""
    tls_cert_file: str | Path
    """PEM file with the client's own certificate chain, where the server asks for one. Needs tls_key_file."""
    tls_key_file: str | Path
    """PEM file with that certificate's private key, without a password."""
    token: str
    """What the server knows the caller by."""
    insecure: bool
    """Whether the token may leave this machine without TLS, for networks that encrypt by themselves."""


def open_channel(address: str, **options: Unpack[ConnectionOptions]) -> grpc.Channel:
    """Return a channel for blocking calls.

    Raises:
        ValueError: if `options` contradict each other.
        OSError: if a file can't be read.
    """
    credentials = _credentials(options)
    if credentials is None:
        return grpc.insecure_channel(address, CHANNEL_OPTIONS)
    return grpc.secure_channel(address, credentials, CHANNEL_OPTIONS)


def open_aio_channel(address: str, **options: Unpack[ConnectionOptions]) -> grpc.aio.Channel:
    """Return a channel for asyncio. Raises as `open_channel` does."""
    credentials = _credentials(options)
    if credentials is None:
        return grpc.aio.insecure_channel(address, CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, credentials, CHANNEL_OPTIONS)


def call_metadata(address: str, **options: Unpack[ConnectionOptions]) -> tuple[tuple[str, str], ...]:
    """Return what every call carries: the token, where there is one.

    Raises:
        ValueError: if others could read the token on its way, or it can't be one.
    """
    token = options.get("token")
    if token is None:
        return ()
    if not (token and token.isascii() and token.isprintable()):
        raise ValueError("the token is empty, or has characters that no token has, such as the end of a line")
    if not (_encrypts(options) or options.get("insecure") or is_loopback(address)):
        raise ValueError(f"without TLS others could read the token on its way to {address}: use TLS, or say insecure")
    return (("authorization", f"Bearer {token}"),)


def _encrypts(options: ConnectionOptions) -> bool:
    return any(options.get(name) for name in ("tls", "tls_ca_file", "tls_cert_file", "tls_key_file"))


def _credentials(options: ConnectionOptions) -> grpc.ChannelCredentials | None:
    """Return credentials for TLS; None for plain text."""
    if not _encrypts(options):
        return None
    cert_file, key_file = options.get("tls_cert_file"), options.get("tls_key_file")
    if (cert_file is None) != (key_file is None):
        raise ValueError("tls_cert_file and tls_key_file go together")
    authorities, key, chain = (
        None if file is None else Path(file).read_bytes() for file in (options.get("tls_ca_file"), key_file, cert_file)
    )
    return grpc.ssl_channel_credentials(authorities, key, chain)
