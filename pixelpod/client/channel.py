"""How the clients connect: retries and keepalive."""

from __future__ import annotations

import json

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
                "retryableStatusCodes": ["UNAVAILABLE"],
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
