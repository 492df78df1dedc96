"""Groups by a file that lists their addresses and may change while the frontend runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from service.addresses import Address
from service.sources import SourceFailed

LARGEST_FILE_BYTES = 1024 * 1024
"""A larger file is not what was meant."""

_address: TypeAdapter[str] = TypeAdapter(Address)


class FileSource:
    """Lists the addresses in a file: one a line, host:port; empty lines and what follows a # do not count.

    The file is read anew at every look. It is small, and times of change miss edits that follow one another closely.
    Replace it by a rename, as mounted ConfigMaps are, rather than write to it: half a file looks like a whole one.
    """

    kind = "file"

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    async def look(self) -> frozenset[str]:
        """Read the file.

        Raises:
            SourceFailed: if it can't be read, has a line that is no address, or lists none at all.
        """
        return await asyncio.to_thread(self._read)

    def _read(self) -> frozenset[str]:
        try:
            with self._path.open("rb") as file:
                content = file.read(LARGEST_FILE_BYTES + 1)
            if len(content) > LARGEST_FILE_BYTES:
                raise SourceFailed(f"the file is larger than {LARGEST_FILE_BYTES} bytes")
            lines = content.decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SourceFailed(str(error)) from error
        entries = {number: line.partition("#")[0].strip() for number, line in enumerate(lines, start=1)}
        addresses = frozenset(_checked(entry, number) for number, entry in entries.items() if entry)
        if not addresses:
            raise SourceFailed("the file lists no address")
        return addresses


def _checked(entry: str, number: int) -> str:
    try:
        return _address.validate_python(entry)
    except ValidationError as error:
        raise SourceFailed(f"line {number} is no address, host:port") from error
