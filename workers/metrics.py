"""What Prometheus reads of a group, on rank 0. No prompt text, and labels of a few known values only."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from pixelpod.v1 import group_pb2
from workers.model_file import ModelFile
from workers.queue import RequestQueue
from workers.status import StatusBoard

if TYPE_CHECKING:
    from workers.compiles import Compiles

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 180, 240, 300, 450, 600)
"""They reach the longest request, so that no quantile falls into infinity."""
COMPILE_SECONDS_BUCKETS = (0.1, 0.5, 1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600)

_PREFIX = "pixelpod_group_"


class GroupMetrics:
    """The metrics of one group, in a registry of their own.

    Args:
        model: What the group serves.
        queue: Whose load is told.
        status: Whose state is told.
    """

    def __init__(self, model: ModelFile, queue: RequestQueue, status: StatusBoard) -> None:
        self._model = model.name
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            f"{_PREFIX}requests", "Requests ended, by gRPC status code.", ["model", "code"], registry=registry
        )
        self._request_seconds = Histogram(
            f"{_PREFIX}request_seconds",
            "From arrival at the group until the end.",
            ["model"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.queue_seconds = Histogram(
            f"{_PREFIX}queue_seconds",
            "From arrival at the group until the first batch.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self._stage_seconds = Histogram(
            f"{_PREFIX}stage_seconds",
            "encode, denoise and decode of a batch; image_encode of an image.",
            ["stage"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.batch_size = Histogram(
            f"{_PREFIX}batch_size", "Images of a batch, padding left out.", buckets=(1, 2, 4, 8, 16), registry=registry
        )
        self._prompts = Counter(
            f"{_PREFIX}prompts",
            "Prompts of batches, by whether the text encoders ran (encoded) or their result was still there (cached).",
            ["source"],
            registry=registry,
        )
        self.not_finite = Counter(
            f"{_PREFIX}not_finite", "Requests that failed because values were not finite.", registry=registry
        )
        self.out_of_memory = Counter(
            f"{_PREFIX}out_of_memory", "Batches that failed because memory was full.", registry=registry
        )
        self._readers_ended = Counter(
            f"{_PREFIX}readers_ended",
            "Calls ended since their frontend did not read: it stalled, or its deadline passed.",
            ["reason"],
            registry=registry,
        )
        self._restarts = Counter(
            f"{_PREFIX}restarts",
            "How often the launcher's world was started again, by reason.",
            ["reason"],
            registry=registry,
        )
        self._compile_seconds = Histogram(
            f"{_PREFIX}compile_seconds",
            "Compiles of rank 0, and programs found in a cache, by component and bucket.",
            ["component", "bucket"],
            buckets=COMPILE_SECONDS_BUCKETS,
            registry=registry,
        )
        self._compiles_after_ready = Counter(
            f"{_PREFIX}compiles_after_ready",
            "Compiles of all ranks that kept a request waiting, by component and bucket. There should be none.",
            ["component", "bucket"],
            registry=registry,
        )
        in_flight = Gauge(f"{_PREFIX}in_flight", "Requests accepted and not yet ended.", registry=registry)
        in_flight.set_function(lambda: queue.load().in_flight)
        waiting = Gauge(f"{_PREFIX}queue_length", "Requests that wait for the device.", registry=registry)
        waiting.set_function(lambda: queue.load().waiting)
        self.connections = Gauge(f"{_PREFIX}connections", "Open connections of callers.", registry=registry)
        self.connections_closed = Counter(
            f"{_PREFIX}connections_closed",
            "Connections closed because of a limit, by the server that they were of, and why.",
            ["server", "reason"],
            registry=registry,
        )
        self._tell_state(status)
        Info("pixelpod_build", "What runs here.", registry=registry).info(
            {"version": version("pixelpod"), "model": model.name, "revision": model.revision}
        )

    def restarted(self, reason: str, times: int) -> None:
        """Count what happened before this process started."""
        self._restarts.labels(reason).inc(times)

    def request_ended(self, code: grpc.StatusCode, seconds: float) -> None:
        """Count a request that ended with `code` after `seconds`."""
        self._requests.labels(self._model, code.name).inc()
        self._request_seconds.labels(self._model).observe(seconds)

    def reader_ended(self, reason: str) -> None:
        """Count a call that was ended since its answer was not read."""
        self._readers_ended.labels(reason).inc()

    def stage_took(self, stage: str, seconds: float) -> None:
        """Count one run of a stage."""
        self._stage_seconds.labels(stage).observe(seconds)

    def prompts(self, encoded: int, cached: int) -> None:
        """Count the prompts of a batch."""
        self._prompts.labels("encoded").inc(encoded)
        self._prompts.labels("cached").inc(cached)

    def compiled(self, component: str, bucket: str, compiles: Compiles) -> None:
        """Count what rank 0 compiled. Of several compiles at once each took the mean."""
        for _ in range(compiles.count):
            self._compile_seconds.labels(component, bucket).observe(compiles.seconds / compiles.count)

    def compiled_after_ready(self, component: str, bucket: str, count: int) -> None:
        """Count what a rank compiled for a request."""
        if count:
            self._compiles_after_ready.labels(component, bucket).inc(count)

    def connection_closed(self, server: str, reason: str) -> None:
        """Count a connection to `server`, one of calls, probes and metrics, that a limit closed."""
        self.connections_closed.labels(server, reason).inc()

    def _tell_state(self, status: StatusBoard) -> None:
        state = Gauge(f"{_PREFIX}state", "1 for the state that the group is in.", ["state"], registry=self.registry)
        for name, value in group_pb2.GroupState.items():
            if value != group_pb2.GROUP_STATE_UNSPECIFIED:
                label = name.removeprefix("GROUP_STATE_").lower()
                state.labels(label).set_function(partial(_is_in, status, value))


def _is_in(status: StatusBoard, state: group_pb2.GroupState.ValueType) -> float:
    return float(status.state == state)
