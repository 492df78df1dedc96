"""What Prometheus reads of a frontend."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info

from service.availability import Availability
from service.group_connection import CONTRACT_VERSION, GroupConnection

SECONDS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 45, 60, 90, 120, 180, 300, 450, 600)
"""From a refusal to the longest request allowed by default."""

LAG_SECONDS_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)

UNKNOWN_MODEL = "unknown"
"""The model label of requests that named no model served: callers must not make label values."""


class FrontendMetrics:
    """The metrics of one frontend, in a registry of their own. All names begin with pixelpod_frontend_."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "pixelpod_frontend_requests", "Requests ended, by status code.", ["model", "code"], registry=registry
        )
        self.request_seconds = Histogram(
            "pixelpod_frontend_request_seconds",
            "From arrival to the ending.",
            ["model"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "pixelpod_frontend_queue_seconds",
            "From arrival until a group began to compute; requests that succeeded.",
            ["model"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.waiting = Gauge(
            "pixelpod_frontend_waiting", "Requests that wait for a group with room.", ["model"], registry=registry
        )
        self.sent_again = Counter(
            "pixelpod_frontend_sent_again",
            "Requests sent to another group: the first was lost, or refused them.",
            ["model", "reason"],
            registry=registry,
        )
        self.in_flight = Gauge("pixelpod_frontend_in_flight", "Requests arrived and not yet ended.", registry=registry)
        self.loop_lag_seconds = Histogram(
            "pixelpod_frontend_loop_lag_seconds",
            "How late the event loop runs what is due.",
            buckets=LAG_SECONDS_BUCKETS,
            registry=registry,
        )
        self.unauthenticated = Counter(
            "pixelpod_frontend_unauthenticated",
            "Calls refused for want of a known token, by reason; they are no requests yet.",
            ["reason"],
            registry=registry,
        )
        self.repeated_requests = Counter(
            "pixelpod_frontend_repeated_requests",
            "Requests whose id was known: they joined a running computation, or got the kept answer.",
            ["source"],
            registry=registry,
        )
        self.answers_kept_bytes = Gauge(
            "pixelpod_frontend_answers_kept_bytes", "Answers kept for repeated request ids.", registry=registry
        )
        self.unread_bytes = Gauge(
            "pixelpod_frontend_unread_bytes", "Answers made that callers have not taken yet.", registry=registry
        )
        self.readers_ended = Counter(
            "pixelpod_frontend_readers_ended",
            "Calls ended since their caller did not read: it stalled, its deadline passed, or too much was unread.",
            ["reason"],
            registry=registry,
        )
        self.group_up = Gauge(
            "pixelpod_frontend_group_up", "1 while the group takes requests.", ["address"], registry=registry
        )
        self.group_state = Enum(
            "pixelpod_frontend_group_state",
            "What the group is to this frontend.",
            ["address"],
            states=[str(availability) for availability in Availability],
            registry=registry,
        )
        self.discovery_failures = Counter(
            "pixelpod_frontend_discovery_failures",
            "Looks at a source of group addresses that failed.",
            ["source"],
            registry=registry,
        )
        self.connections = Gauge("pixelpod_frontend_connections", "Open connections of callers.", registry=registry)
        self.connections_closed = Counter(
            "pixelpod_frontend_connections_closed",
            "Connections closed because of a limit, by the server that they were of, and why.",
            ["server", "reason"],
            registry=registry,
        )
        self._addresses_shown: set[str] = set()
        build = Info("pixelpod_frontend_build", "What is running.", registry=registry)
        build.info(
            {
                "version": version("pixelpod"),
                "python": platform.python_version(),
                "contract_version": str(CONTRACT_VERSION),
            }
        )

    def show_groups(self, groups: Iterable[GroupConnection]) -> None:
        """Set the gauges of `groups` to what these are now, and forget all other groups."""
        addresses = set()
        for group in groups:
            addresses.add(group.address)
            self.group_up.labels(group.address).set(int(group.ready))
            self.group_state.labels(group.address).state(str(group.availability))
        for address in self._addresses_shown - addresses:
            self.group_up.remove(address)
            self.group_state.remove(address)
        self._addresses_shown = addresses

    def connection_closed(self, server: str, reason: str) -> None:
        """Count a connection to `server`, one of calls, probes and metrics, that a limit closed."""
        self.connections_closed.labels(server, reason).inc()

    def refused_stranger(self, reason: str) -> None:
        """Count a call without a known token."""
        self.unauthenticated.labels(reason).inc()
