"""The command line's connection to a frontend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pixelpod.client import Client, PixelpodError
from pixelpod.commands.failure import CommandFailed
from pixelpod.exit_codes import exit_code_of_status


@contextmanager
def connected(address: str) -> Iterator[Client]:
    """Yield a client of the frontend at `address`; its exceptions become failures of the command."""
    # gRPC's own log would come between our lines on standard error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        with Client(address) as client:
            yield client
    except PixelpodError as error:
        raise _failure(error) from error


def _failure(error: PixelpodError) -> CommandFailed:
    details = {
        "code": error.code.name,
        "reason": error.reason,
        "field": error.field,
        "retry_after_seconds": error.retry_after_seconds,
    }
    retry = "" if error.retry_after_seconds is None else f" (try again in {error.retry_after_seconds:g} s)"
    return CommandFailed(f"{error.message}{retry}", exit_code_of_status(error.code.name), details)
