"""`pixelpod token`: draws a token for a caller."""

from __future__ import annotations

import json
import secrets
from typing import Annotated

import typer

from pixelpod.commands.extras import importing
from pixelpod.commands.parameters import Json
from pixelpod.commands.settings import settings_from

TOKEN_BYTES = 32


def token(
    name: Annotated[str, typer.Argument(help="Who is to have it; stands in logs.")],
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A model that it is for; repeat for more. Default: all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw a token and make its entry for a tokens file. Neither is stored anywhere."""
    with importing("service"):
        from pixelpod.server.callers import Caller, token_digest

    drawn = secrets.token_urlsafe(TOKEN_BYTES)
    caller = settings_from(Caller, name=name, token_sha256=[token_digest(drawn)], models=model or "all")
    entry = caller.model_dump(exclude_none=True)
    if as_json:
        typer.echo(json.dumps({"token": drawn, "entry": entry}))
    else:
        typer.echo(f"token, for the caller only: {drawn}")
        typer.echo(f'entry, for "callers" in the tokens file: {json.dumps(entry)}')
