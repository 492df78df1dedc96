"""File descriptors: the process gets as many as it may have, and callers' connections do not take them all."""

from __future__ import annotations

import logging
import resource
import sys
from dataclasses import replace

from pixelpod.server.connections import ConnectionLimits

logger = logging.getLogger(__name__)

RESERVED_AT_LEAST = 128
"""Descriptors that are no callers' connections: probes, metrics, files, libraries, and the groups' connections."""
RESERVED_SHARE = 0.25
"""Of all descriptors, if that is more: a frontend with many groups has a connection to each."""


def raise_descriptor_limit() -> None:
    """Let this process open as many descriptors as the hard limit allows. Common soft limits are low for the sake of
    `select`, which nothing here uses."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS says unlimited, and refuses it
        logger.warning("the limit on open files stays as it is", extra={"error": str(error)})


def connections_within_limit(wanted: ConnectionLimits) -> ConnectionLimits:
    """Return limits with fewer connections in all where descriptors would not last, and log a warning then."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = sys.maxsize
    allowed = max(1, soft - max(RESERVED_AT_LEAST, int(soft * RESERVED_SHARE)))
    if allowed >= wanted.connections:
        return wanted
    logger.warning(
        "the limit on open files (ulimit -n) is low: fewer connections are taken than max_connections says",
        extra={"open_files": soft, "max_connections": wanted.connections, "connections_taken": allowed},
    )
    return replace(wanted, connections=allowed)
