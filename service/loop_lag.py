"""How late the event loop runs what is due: anything that blocks it shows here."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import Histogram

INTERVAL_SECONDS = 0.05


async def watch_loop_lag(lag_seconds: Histogram) -> None:
    """Observe the lag until cancelled, every `INTERVAL_SECONDS`."""
    while True:
        due = time.monotonic() + INTERVAL_SECONDS
        await asyncio.sleep(INTERVAL_SECONDS)
        lag_seconds.observe(max(0.0, time.monotonic() - due))
