"""Logging of every Pixelpod process: one line an event on standard error, as text or JSON. Never prompt text."""

from __future__ import annotations

import logging
import sys
from typing import Literal

from pythonjsonlogger.json import JsonFormatter

LogFormat = Literal["text", "json"]

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _TextFormatter(logging.Formatter):
    """Appends the record's extra fields as key=value, so that text and JSON tell the same."""

    def format(self, record: logging.LogRecord) -> str:
        extra = {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}
        line = super().format(record)
        return " ".join([line, *(f"{key}={value}" for key, value in extra.items())])


def _is_no_broken_write(record: logging.LogRecord) -> bool:
    """Drop the traceback that grpc.aio logs when a caller leaves while a message is written to it: that is no error."""
    return not record.getMessage().startswith("ExecuteBatchError raised in core by servicer method")


def configure_logging(log_format: LogFormat, role: str, level: str = "INFO") -> None:
    """Send this process's log to standard error.

    Args:
        log_format: "text" for people, "json" for collectors.
        role: Who is speaking, for example "frontend" or "group/rank1"; part of every line.
        level: Smallest level of Pixelpod's own loggers; other libraries stay at WARNING.
    """
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(
            JsonFormatter(
                "%(asctime)s %(levelname)s %(name)s %(message)s",
                rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
                static_fields={"role": role},
            )
        )
    else:
        handler.setFormatter(_TextFormatter(f"%(asctime)s %(levelname)s [{role}] %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_broken_write)
    for name in ("pixelpod", "service", "workers"):
        logging.getLogger(name).setLevel(level)
