"""A file's addresses, and what counts as no such file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.file_source import LARGEST_FILE_BYTES, FileSource
from service.sources import SourceFailed


async def test_addresses_comments_and_changes(tmp_path: Path) -> None:
    file = tmp_path / "groups"
    source = FileSource(file)
    file.write_text("# ours\n10.0.0.1:7861\n\n  host-b:7861  # the big one\r\n[fd00::1]:7861\n10.0.0.1:7861")
    assert await source.look() == {"10.0.0.1:7861", "host-b:7861", "[fd00::1]:7861"}
    file.write_text("# ours\n10.0.0.2:7861\n\n  host-b:7861  # the big one\r\n[fd00::1]:7861\n10.0.0.2:7861")  # as long
    assert await source.look() == {"10.0.0.2:7861", "host-b:7861", "[fd00::1]:7861"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "lists no address"),
        (b"# all away\n", "lists no address"),
        (b"a:1\nb\n", "line 2 is no address, host:port"),
        (b"a:1 b:2\n", "line 1 is no address"),
        (b"\xff\xfe", "can't decode"),
        (b"a:1\n" * (LARGEST_FILE_BYTES // 4 + 1), f"larger than {LARGEST_FILE_BYTES} bytes"),
    ],
)
async def test_broken_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "groups"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SourceFailed, match=re.escape(message)):
        await FileSource(file).look()
