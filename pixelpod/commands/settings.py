"""From command line options to the settings of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pixelpod.commands.failure import CommandFailed
from pixelpod.commands.parameters import NOWHERE
from pixelpod.exit_codes import ExitCode

Settings = TypeVar("Settings")


def settings_from(kind: Callable[..., Settings], **options: object) -> Settings:
    """Return the settings; what was not given (None) is left to the environment and the defaults of `kind`.

    Raises:
        CommandFailed: if a value is refused; the message names it.
    """
    from pydantic import ValidationError

    given = {name: value for name, value in options.items() if value is not None}
    if given.get("metrics") == NOWHERE:
        given["metrics"] = None
    try:
        return kind(**given)
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}, not {fault['input']!r}"
            if fault["loc"]
            else fault["msg"]  # of the settings as a whole
            for fault in error.errors(include_url=False, include_context=False)
        ]
        raise CommandFailed("; ".join(faults), ExitCode.REFUSED) from error
