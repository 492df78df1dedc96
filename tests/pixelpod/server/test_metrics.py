"""/metrics has one owner per port."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from pixelpod.server.metrics import MetricsServer
from pixelpod.server.transport import AddressInUse


def test_second_server_on_one_port_is_refused() -> None:
    server = MetricsServer("127.0.0.1:0", CollectorRegistry())
    try:
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{server.port}"):
            MetricsServer(f"127.0.0.1:{server.port}", CollectorRegistry())
    finally:
        server.close()


def test_closed_server_frees_its_port() -> None:
    server = MetricsServer("127.0.0.1:0", CollectorRegistry())
    server.close()
    MetricsServer(f"127.0.0.1:{server.port}", CollectorRegistry()).close()
