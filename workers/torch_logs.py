"""torch writes its log lines through handlers of its own, in a format of its own: here they get ours."""

from __future__ import annotations

import logging


def adopt_torch_logs() -> None:
    """Send what torch logs from now on where our own log goes. Call it after torch is imported."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger) and _writes_to_a_stream(logger):
            logger.handlers = list(logging.root.handlers)


def _writes_to_a_stream(logger: logging.Logger) -> bool:
    """Tell torch's console handlers from those that record traces for its developers."""
    return any(type(handler) is logging.StreamHandler for handler in logger.handlers)
