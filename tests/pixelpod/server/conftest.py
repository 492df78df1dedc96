"""Metrics that are served, and closed with their test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from pixelpod.server.metrics import MetricsServer
from pixelpod.server.metrics_access import MetricsAccessSettings, metrics_certificates


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("answer", "To everything.", registry=registry).set(42)
    return registry


@pytest.fixture
def closed() -> Counter[str]:
    """Reasons that connections were closed for."""
    return Counter()


@pytest.fixture
def serve_metrics(registry: CollectorRegistry, closed: Counter[str]) -> Iterator[Callable[..., MetricsServer]]:
    """Serve, over TLS with settings for it."""
    servers: list[MetricsServer] = []

    def start(**settings: Path) -> MetricsServer:
        certificates = metrics_certificates(MetricsAccessSettings(**settings))
        servers.append(MetricsServer("127.0.0.1:0", registry, certificates, lambda reason: closed.update([reason])))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
