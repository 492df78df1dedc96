"""The exit codes of the command line: one table."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended, for scripts."""

    OK = 0
    FAILED = 1
    REFUSED = 2
    ADDRESS_IN_USE = 3
    NOT_NOW = 4
    INTERRUPTED = 130


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done; also: stopped by SIGTERM or Ctrl-C (serve, group, dev)",
    ExitCode.FAILED: "unexpected failure, or a group whose world broke",
    ExitCode.REFUSED: "wrong usage, refused request or model file: trying again can't help",
    ExitCode.ADDRESS_IN_USE: "an address to listen on is in use",
    ExitCode.NOT_NOW: "unavailable, overloaded, or out of time: trying again may help",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C (generate, models)",
}
"""What each code means, as `--help` and docs/cli.md tell it."""

_STATUSES: dict[str, ExitCode] = {
    "INVALID_ARGUMENT": ExitCode.REFUSED,
    "NOT_FOUND": ExitCode.REFUSED,
    "UNAUTHENTICATED": ExitCode.REFUSED,
    "PERMISSION_DENIED": ExitCode.REFUSED,
    "FAILED_PRECONDITION": ExitCode.REFUSED,
    "ALREADY_EXISTS": ExitCode.REFUSED,
    "UNAVAILABLE": ExitCode.NOT_NOW,
    "DEADLINE_EXCEEDED": ExitCode.NOT_NOW,
    "RESOURCE_EXHAUSTED": ExitCode.NOT_NOW,
}

EPILOG = "\n".join(["Exit codes:", *(f"{code.value:>5}  {meaning}" for code, meaning in MEANINGS.items())])
"""The table as the end of a help text."""


def exit_code_of_status(name: str) -> ExitCode:
    """Return the exit code for a call that ended with the gRPC status code of this name."""
    return _STATUSES.get(name, ExitCode.FAILED)
