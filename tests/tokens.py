"""Tokens files for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pixelpod.server.callers import token_digest


def entry(name: str, *tokens: str, models: object = "all", **limits: int) -> dict[str, Any]:
    """Return what a tokens file says of one caller."""
    return {"name": name, "token_sha256": [token_digest(token) for token in tokens], "models": models, **limits}


def write_tokens(file: Path, *entries: dict[str, Any]) -> Path:
    """Write a tokens file in the place of the one that may be there, at once."""
    waiting = file.with_suffix(".new")
    waiting.write_text(json.dumps({"callers": entries}))
    return waiting.replace(file)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call with a token."""
    return (("authorization", f"Bearer {token}"),)
