"""How the clients connect: retries and keepalive."""

from __future__ import annotations

import json

SERVICE = "pixelpod.v1.ImageGeneration"

SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": SERVICE}],
            # gRPC itself tries again only while no answer has begun, keeps within the deadline, and waits as long as
            # the server asks for where it does.
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.25s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
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
