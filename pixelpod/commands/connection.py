"""The command line's connection to a frontend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

from pixelpod.client import Client, ConnectionOptions, PixelpodError
from pixelpod.commands.failure import CommandFailed
from pixelpod.exit_codes import ExitCode, exit_code_of_status

TOKEN_VARIABLE = "PIXELPOD_TOKEN"
"""Holds a token. There is no option for one: other users of a machine see command lines."""


def connection_options(
    *,
    tls: bool,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
    insecure: bool,
) -> ConnectionOptions:
    """Return what the client needs, from what the command line and the environment tell.

    Raises:
        CommandFailed: if the token's file can't be read.
    """
    options: ConnectionOptions = {"tls": tls, "insecure": insecure}
    if tls_ca is not None:
        options["tls_ca_file"] = tls_ca
    if tls_cert is not None:
        options["tls_cert_file"] = tls_cert
    if tls_key is not None:
        options["tls_key_file"] = tls_key
    if (token := _token(token_file)) is not None:
        options["token"] = token
    return options


@contextmanager
def connected(address: str, **options: Unpack[ConnectionOptions]) -> Iterator[Client]:
    """Yield a client of the frontend at `address`; its exceptions become failures of the command."""
    # gRPC's own log would come between our lines on standard error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        client = Client(address, **options)
    except (OSError, ValueError) as error:
        raise CommandFailed(str(error), ExitCode.REFUSED) from error
    try:
        with client:
            yield client
    except PixelpodError as error:
        raise _failure(error) from error


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN_VARIABLE)
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"--token-file {file} can't be read", ExitCode.REFUSED) from error


def _failure(error: PixelpodError) -> CommandFailed:
    details = {
        "code": error.code.name,
        "reason": error.reason,
        "field": error.field,
        "retry_after_seconds": error.retry_after_seconds,
    }
    retry = "" if error.retry_after_seconds is None else f" (try again in {error.retry_after_seconds:g} s)"
    return CommandFailed(f"{error.message}{retry}", exit_code_of_status(error.code.name), details)
