"""The endpoint over real gRPC, with the test in the place of the leader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pixelpod.v1 import group_pb2, group_pb2_grpc
from tests.e2e.processes import wait_until
from tests.workers.models import make_request
from workers.endpoint import Endpoint
from workers.liveness import LivenessFile
from workers.metrics import GroupMetrics
from workers.queue import RequestQueue
from workers.request import AcceptedRequest
from workers.status import StatusBoard

WAIT_SECONDS = 10.0


@dataclass
class Served:
    """An endpoint that serves, and both sides of it."""

    endpoint: Endpoint
    queue: RequestQueue
    status: StatusBoard
    metrics: GroupMetrics
    address: str
    channel: grpc.Channel
    liveness: LivenessFile

    def execute(self, timeout: float | None = WAIT_SECONDS, **changes: Any) -> Any:
        """Return the streamed call of a request with changed parameters."""
        return group_pb2_grpc.WorkerGroupStub(self.channel).ExecuteStream(make_request(**changes), timeout=timeout)

    def accepted(self, **changes: Any) -> Any:
        """Return the streamed call of a request that has its place in the queue."""
        before = self.queue.load().in_flight
        call = self.execute(**changes)
        self.wait_in_flight(before + 1)
        return call

    def wait_in_flight(self, requests: int) -> None:
        """Wait until so many requests are accepted and not ended."""
        wait_until(lambda: self.queue.load().in_flight == requests, WAIT_SECONDS, lambda: "not accepted")

    def watch(self) -> Any:
        """Return the statuses, as they come."""
        stub = group_pb2_grpc.WorkerGroupStub(self.channel)
        return stub.WatchStatus(group_pb2.WatchStatusRequest(), timeout=WAIT_SECONDS)

    def health(self, service: str = "") -> int:
        """Return what it says of its health now."""
        request = health_pb2.HealthCheckRequest(service=service)
        return health_pb2_grpc.HealthStub(self.channel).Check(request, timeout=WAIT_SECONDS).status

    def take(self) -> list[AcceptedRequest]:
        """Take the requests of the next batch."""
        images = self.queue.take(WAIT_SECONDS)
        self.queue.batch_ended()
        return list(dict.fromkeys(image.request for image in images))

    def ended(self, code: str) -> float:
        """Return how many requests ended with `code`, once none is in flight."""
        assert self.queue.wait_until_empty(WAIT_SECONDS)
        assert self.metrics.registry.get_sample_value("pixelpod_group_in_flight") == 0
        labels = {"model": "small", "code": code}
        return self.metrics.registry.get_sample_value("pixelpod_group_requests_total", labels) or 0
