"""What blocks the event loop is seen."""

from __future__ import annotations

import asyncio
import time

from service.loop_lag import watch_loop_lag
from service.metrics import FrontendMetrics
from tests.service.conftest import eventually


async def test_a_blocked_loop_is_seen() -> None:
    metrics = FrontendMetrics()

    def seen(bound: str) -> float:
        name = "pixelpod_frontend_loop_lag_seconds_bucket"
        return metrics.registry.get_sample_value(name, {"le": bound}) or 0

    watch = asyncio.create_task(watch_loop_lag(metrics.loop_lag_seconds))
    await eventually(lambda: seen("+Inf") >= 2)
    on_time = seen("0.25")
    time.sleep(0.4)  # noqa: ASYNC251 -- this is the point
    await eventually(lambda: seen("+Inf") > seen("0.25"))
    assert seen("+Inf") - seen("0.25") >= 1
    assert on_time >= 1
    watch.cancel()
