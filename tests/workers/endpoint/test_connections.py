"""Limits on the connections of a group's endpoint, from settings to metrics."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from pixelpod.server.eviction import roomy
from pixelpod.server.probes import LIVE
from tests.e2e.processes import SERVING, free_address, health_of, wait_until
from tests.raw_http import PREFACE, connections, is_closed, seconds_until_closed
from tests.workers.endpoint.served import WAIT_SECONDS, Served


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _closed(served: Served, server: str, reason: str) -> float:
    labels = {"server": server, "reason": reason}
    return served.metrics.registry.get_sample_value("pixelpod_group_connections_closed_total", labels) or 0


def test_idle_connections_make_room_and_frontends_keep_theirs(serve: Callable[..., Served]) -> None:
    served = serve(max_connections=24)
    statuses = served.watch()
    next(statuses)
    with connections(_port(served.address), 100, first_bytes=PREFACE) as held:
        wait_until(lambda: sum(map(is_closed, held)) >= 100 - roomy(24), WAIT_SECONDS, lambda: "no room was made")
        assert health_of(served.address) == SERVING
        call = served.accepted()
        served.take()
        assert next(status for status in statuses if status.in_flight == 1)
        call.cancel()
    assert _closed(served, "calls", "room") > 0
    wait_until(
        lambda: served.metrics.registry.get_sample_value("pixelpod_group_connections") == 1,
        WAIT_SECONDS,
        lambda: "connections are not gone",
    )


def test_one_address_takes_no_more_than_its_share(serve: Callable[..., Served]) -> None:
    served = serve(max_connections_per_address=8)
    with connections(_port(served.address), 20, first_bytes=PREFACE, source="127.0.0.2") as held:
        wait_until(lambda: sum(map(is_closed, held)) == 12, WAIT_SECONDS, lambda: "more than its share")
        assert health_of(served.address) == SERVING
    assert _closed(served, "calls", "address") == 12


def test_silent_and_idle_connections_end(serve: Callable[..., Served]) -> None:
    served = serve(handshake_timeout_seconds=0.5, max_connection_idle_seconds=0.5)
    for first_bytes in (b"", PREFACE):
        with connections(_port(served.address), 1, first_bytes=first_bytes) as (connection,):
            assert seconds_until_closed(connection) < 5
    with grpc.insecure_channel(served.address):
        assert served.health() == SERVING


def test_probes_are_answered_beside_idle_connections(serve: Callable[..., Served]) -> None:
    address = free_address()
    served = serve(probes=address)
    wait_until(lambda: health_of(address) == SERVING, WAIT_SECONDS, lambda: "not serving")
    with connections(_port(address), 100, first_bytes=PREFACE) as held:
        wait_until(lambda: sum(map(is_closed, held)) >= 84, WAIT_SECONDS, lambda: "no room was made")
        assert health_of(address, LIVE) == SERVING
    assert _closed(served, "probes", "address") > 0
