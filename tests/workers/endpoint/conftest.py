"""Endpoints that serve, closed with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from pixelpod.server.errors import Unavailable
from pixelpod.v1 import group_pb2
from tests.workers.endpoint.served import Served
from tests.workers.models import make_model
from workers.endpoint import Endpoint
from workers.estimates import Estimates
from workers.liveness import LivenessFile
from workers.metrics import GroupMetrics
from workers.queue import RequestQueue
from workers.settings import GroupSettings
from workers.status import StatusBoard
from workers.vitals import Vitals


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Return a function that serves with given settings, READY and warm unless told otherwise."""
    started: list[Served] = []

    def start(ready: bool = True, cold_width: int = 0, **settings: Any) -> Served:
        values = GroupSettings(model=Path("unused"), **{"listen": "127.0.0.1:0", **settings})
        model = make_model()
        queue = RequestQueue(Estimates(), values.queue_limit or 8, values.in_flight_limit)
        status = StatusBoard("group-a", model, ranks=1, epoch=1, queue=queue)
        metrics = GroupMetrics(model, queue, status)
        liveness = LivenessFile.create(tmp_path / f"liveness-{len(started)}", 1)
        vitals = Vitals(liveness, values.liveness_timeout_seconds, values.loading_liveness_timeout_seconds)
        endpoint = Endpoint(values, model, queue, status, metrics, vitals)
        port = endpoint.start()
        address = f"127.0.0.1:{port}"
        served = Served(endpoint, queue, status, metrics, address, grpc.insecure_channel(address), liveness)
        started.append(served)
        for bucket in model.buckets:
            if ready and bucket.width != cold_width:
                status.tell_warm(bucket.width, bucket.height, measured_seconds=0.0, step_seconds=0.0)
        if ready:
            status.enter(group_pb2.GROUP_STATE_READY)
        return served

    yield start
    for served in started:
        served.endpoint.close(Unavailable("the test ends", reason="TEST_ENDS"))
        served.channel.close()
