"""Commands that need more than the base install."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from pixelpod.commands.failure import CommandFailed
from pixelpod.exit_codes import ExitCode

_OUR_PACKAGES = {"pixelpod", "service", "workers"}


@contextmanager
def importing(extra: str) -> Iterator[None]:
    """Import inside the block what the extra `extra` brings.

    Raises:
        CommandFailed: if it is not installed; the message says what to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in _OUR_PACKAGES:
            raise
        raise _missing(extra, str(error.name)) from error


def require(extra: str, module: str) -> None:
    """Check, without importing it, that a module of the extra `extra` is installed.

    Raises:
        CommandFailed: if it is not; the message says what to install.
    """
    if importlib.util.find_spec(module) is None:
        raise _missing(extra, module)


def _missing(extra: str, module: str) -> CommandFailed:
    return CommandFailed(f"needs `pip install pixelpod[{extra}]`: there is no module {module}", ExitCode.REFUSED)
