"""`pixelpod models`: tells what a frontend serves."""

from __future__ import annotations

from typing import Annotated

import typer

from pixelpod.commands.parameters import DEFAULT_ADDRESS, Json, Server


def models(
    server: Server = DEFAULT_ADDRESS,
    deadline: Annotated[float, typer.Option(metavar="SECONDS", help="When to give up.")] = 10.0,
    as_json: Json = False,
) -> None:
    """List the models that are served, with their limits and defaults."""
    from pixelpod.commands import report
    from pixelpod.commands.connection import connected

    with connected(server) as client:
        served = client.models(deadline_seconds=deadline)
    if as_json:
        report.print_models_json(served)
    else:
        report.print_models(served)
