"""One record per request, from arrival until its answer is gone: its time budget, its metrics and its log line."""

from __future__ import annotations

import logging
import time

import grpc

from pixelpod.server.callers import current_caller
from pixelpod.server.errors import DeadlinePassed
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

    @property
    def abandoned_code(self) -> grpc.StatusCode:
        """The code of a call that its caller ended now: by its deadline, or else by cancelling."""
        in_time = self.remaining_seconds > DEADLINE_SLACK_SECONDS
        return grpc.StatusCode.CANCELLED if in_time else grpc.StatusCode.DEADLINE_EXCEEDED

    def out_of_time(self) -> DeadlinePassed:
        """Return the error of a request whose time ran out."""
        return DeadlinePassed(
            f"the request's time ran out after {self.timeout_seconds:.3g} s, the caller's deadline or the server's own "
            "limit if that is shorter; ask for fewer steps or images, or set a longer deadline",
            reason="DEADLINE_EXCEEDED",
        )

    def conclude(self, code: grpc.StatusCode, metrics: FrontendMetrics) -> None:
        """Count, time and log the request, which ended with `code`. Call it once."""
        seconds = self.elapsed_seconds
        metrics.requests.labels(self.model, code.name).inc()
        metrics.request_seconds.labels(self.model).observe(seconds)
        if self.queue_seconds is not None:
            metrics.queue_seconds.labels(self.model).observe(self.queue_seconds)
        logger.info(
            "request ended",
            extra={
                "request_id": self.request_id,
                "caller": self.caller,
                "model": self.model,
                "code": code.name,
                "seconds": round(seconds, 4),
            },
        )
