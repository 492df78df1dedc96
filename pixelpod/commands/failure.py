"""How a command ends without what it was asked for."""

from __future__ import annotations

from collections.abc import Mapping

from pixelpod.exit_codes import ExitCode

NO_DETAILS: Mapping[str, object] = {}


class CommandFailed(Exception):
    """Ends the command with a line on standard error and an exit code.

    Args:
        message: What was wrong and what to do.
        exit_code: For scripts.
        details: What else is known; part of the error that --json prints.
    """

    def __init__(self, message: str, exit_code: ExitCode, details: Mapping[str, object] = NO_DETAILS) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.details = details
