"""Every request is counted, timed and logged once, with the code it ended with."""

from __future__ import annotations

import logging

import grpc
import pytest

from service.metrics import FrontendMetrics
from service.records import RequestRecord


def sample(metrics: FrontendMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"pixelpod_frontend_{name}", labels)


def test_success(caplog: pytest.LogCaptureFixture) -> None:
    metrics, record = FrontendMetrics(), RequestRecord(10)
    record.request_id, record.model, record.queue_seconds = "id-1", "tiny", 299.0
    with caplog.at_level(logging.INFO, "service"):
        record.conclude(grpc.StatusCode.OK, metrics)
    assert sample(metrics, "requests_total", model="tiny", code="OK") == 1
    assert sample(metrics, "request_seconds_count", model="tiny") == 1
    assert sample(metrics, "queue_seconds_sum", model="tiny") == 299
    assert sample(metrics, "queue_seconds_bucket", model="tiny", le="300.0") == 1
    (line,) = caplog.records
    assert (line.message, line.request_id, line.model, line.code) == ("request ended", "id-1", "tiny", "OK")
    assert 0 <= line.seconds < 1


def test_failure() -> None:
    metrics = FrontendMetrics()
    RequestRecord(10).conclude(grpc.StatusCode.INVALID_ARGUMENT, metrics)
    assert sample(metrics, "requests_total", model="unknown", code="INVALID_ARGUMENT") == 1
    assert sample(metrics, "queue_seconds_count", model="unknown") is None


def test_a_caller_that_leaves_did_so_at_its_deadline_or_before() -> None:
    assert RequestRecord(10).abandoned_code is grpc.StatusCode.CANCELLED
    assert RequestRecord(0.01).abandoned_code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_time_budget() -> None:
    record = RequestRecord(5.0)
    assert 4.9 < record.remaining_seconds <= 5.0
    assert record.elapsed_seconds + record.remaining_seconds == pytest.approx(5.0, abs=0.01)
