"""Values that come from files and follow them: certificates and tokens are replaced while a server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How often the files are looked at."""

Value = TypeVar("Value")


class FileRefused(Exception):
    """A file can't be read, or holds what can't be used. The message names it and tells nothing of its content."""


class Reloaded(Generic[Value]):
    """The value that `load` makes of `files`, made again when they change.

    A change that can't be used is logged, and the value before it stays: a mistake in a file stops no server.

    Raises:
        FileRefused: if the files can't be used in the first place.
    """

    def __init__(self, files: Sequence[Path], load: Callable[[], Value]) -> None:
        self._files = tuple(files)
        self._load = load
        self._seen = self._signature()
        self.value = load()

    async def follow(self) -> None:
        """Look at the files every `POLL_SECONDS` until cancelled, on a thread: a slow disk holds up nobody."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Make the value again if the files changed since it was made or tried."""
        seen = self._signature()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.value = self._load()
        except FileRefused as refusal:
            logger.error("a changed file can't be used, and what it held before stays", extra={"problem": str(refusal)})
        else:
            logger.info("files changed and were read again", extra={"files": ",".join(map(str, self._files))})

    def _signature(self) -> tuple[object, ...]:
        """Return what differs when a file was written, replaced, or removed."""
        return tuple(_signature_of(file) for file in self._files)


def read_file(file: Path) -> bytes:
    """Return what is in `file`.

    Raises:
        FileRefused: if it can't be read.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        raise FileRefused(f"{file}: {error.strerror}") from error


def _signature_of(file: Path) -> object:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
