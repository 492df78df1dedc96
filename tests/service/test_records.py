"""Every request is counted, timed and logged once, with the code it ended with."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pixelpod.server.errors import InvalidRequest, Overloaded
from service.metrics import FrontendMetrics
from service.records import recorded


def sample(metrics: FrontendMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"pixelpod_frontend_{name}", labels)


def test_success(caplog: pytest.LogCaptureFixture) -> None:
    metrics = FrontendMetrics()
    with caplog.at_level(logging.INFO, "service"), recorded(metrics, 10) as record:
        assert sample(metrics, "in_flight") == 1
        record.request_id, record.model, record.queue_seconds = "id-1", "tiny", 299.0
    assert sample(metrics, "in_flight") == 0
    assert sample(metrics, "requests_total", model="tiny", code="OK") == 1
    assert sample(metrics, "request_seconds_count", model="tiny") == 1
    assert sample(metrics, "queue_seconds_sum", model="tiny") == 299
    assert sample(metrics, "queue_seconds_bucket", model="tiny", le="300.0") == 1
    (line,) = caplog.records
    assert (line.message, line.request_id, line.model, line.code) == ("request ended", "id-1", "tiny", "OK")
    assert 0 <= line.seconds < 1


@pytest.mark.parametrize(
    ("error", "timeout_seconds", "code"),
    [
        (InvalidRequest("prompt", "bad"), 10, "INVALID_ARGUMENT"),
        (Overloaded("full", reason="QUEUE_FULL"), 10, "RESOURCE_EXHAUSTED"),
        (ValueError("a bug"), 10, "INTERNAL"),
        (asyncio.CancelledError(), 10, "CANCELLED"),
        (GeneratorExit(), 10, "CANCELLED"),
        (asyncio.CancelledError(), 0.01, "DEADLINE_EXCEEDED"),
    ],
    ids=repr,
)
def test_failure(error: BaseException, timeout_seconds: float, code: str) -> None:
    metrics = FrontendMetrics()
    with pytest.raises(type(error)), recorded(metrics, timeout_seconds):
        raise error
    assert sample(metrics, "requests_total", model="unknown", code=code) == 1
    assert sample(metrics, "in_flight") == 0
    assert sample(metrics, "queue_seconds_count", model="unknown") is None


def test_time_budget() -> None:
    with recorded(FrontendMetrics(), 5.0) as record:
        assert 4.9 < record.remaining_seconds <= 5.0
        assert record.elapsed_seconds + record.remaining_seconds == pytest.approx(5.0, abs=0.01)
