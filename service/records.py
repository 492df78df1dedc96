"""One record per request, from arrival to ending: its time budget, its metrics and its log line."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from pixelpod.server.callers import current_caller
from pixelpod.server.errors import DeadlinePassed, status_code_of
from service.metrics import UNKNOWN_MODEL, FrontendMetrics

logger = logging.getLogger(__name__)

DEADLINE_SLACK_SECONDS = 0.1
"""A caller whose deadline passes cancels the call. Its clock started before ours, so it does that a little early."""


class RequestRecord:
    """What is known of one request. The data plane fills in what it finds out.

    Args:
        timeout_seconds: How long the request may take from now.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.request_id = ""
        self.caller = current_caller().name
        self.model = UNKNOWN_MODEL
        self.queue_seconds: float | None = None
        self.timeout_seconds = timeout_seconds
        self._arrived = time.monotonic()

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since arrival."""
        return time.monotonic() - self._arrived

    @property
    def remaining_seconds(self) -> float:
        """Seconds until the request's time runs out; negative afterwards."""
        return self.timeout_seconds - self.elapsed_seconds

    def out_of_time(self) -> DeadlinePassed:
        """Return the error of a request whose time ran out."""
        return DeadlinePassed(
            f"the request's time ran out after {self.timeout_seconds:.3g} s, the caller's deadline or the server's own "
            "limit if that is shorter; ask for fewer steps or images, or set a longer deadline",
            reason="DEADLINE_EXCEEDED",
        )


@contextmanager
def recorded(metrics: FrontendMetrics, timeout_seconds: float) -> Iterator[RequestRecord]:
    """Record the request handled within: in flight while it runs; counted, timed and logged once when it ends."""
    record = RequestRecord(timeout_seconds)
    code = grpc.StatusCode.OK
    with metrics.in_flight.track_inprogress():
        try:
            yield record
        except (asyncio.CancelledError, GeneratorExit):
            in_time = record.remaining_seconds > DEADLINE_SLACK_SECONDS
            code = grpc.StatusCode.CANCELLED if in_time else grpc.StatusCode.DEADLINE_EXCEEDED
            raise
        except Exception as error:
            code = status_code_of(error)
            raise
        finally:
            _conclude(record, code, metrics)


def _conclude(record: RequestRecord, code: grpc.StatusCode, metrics: FrontendMetrics) -> None:
    seconds = record.elapsed_seconds
    metrics.requests.labels(record.model, code.name).inc()
    metrics.request_seconds.labels(record.model).observe(seconds)
    if record.queue_seconds is not None:
        metrics.queue_seconds.labels(record.model).observe(record.queue_seconds)
    logger.info(
        "request ended",
        extra={
            "request_id": record.request_id,
            "caller": record.caller,
            "model": record.model,
            "code": code.name,
            "seconds": round(seconds, 4),
        },
    )
