"""Background tasks that do not fail in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run `work` beside everything else. If it fails, which it never should, the log says so at once."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_report_failure)
    return task


def _report_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        logger.critical("a background task failed", extra={"task": task.get_name()}, exc_info=error)
