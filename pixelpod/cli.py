"""The command line `pixelpod`. Commands import what they need when they run, so that --help is quick."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from pixelpod.commands.dev import dev
from pixelpod.commands.failure import CommandFailed
from pixelpod.commands.generate import generate
from pixelpod.commands.group import group
from pixelpod.commands.models import models
from pixelpod.commands.plan import plan
from pixelpod.commands.serve import serve
from pixelpod.commands.token import token
from pixelpod.exit_codes import EPILOG, ExitCode

app = typer.Typer(name="pixelpod", add_completion=False, pretty_exceptions_enable=False)
for command in (dev, generate, models, serve, group, token, plan):
    app.command(epilog=EPILOG)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pixelpod {version('pixelpod')}")
        raise typer.Exit


@app.callback(epilog=EPILOG)
def _pixelpod(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Text in, images out: serves diffusers pipelines over gRPC, and asks for images."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Errors are one line on standard error, or JSON where that was asked for.

    Args:
        arguments: The command line without the program's name; None takes this process's own.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        # Typer returns what the command returns, or the code of a typer.Exit; 130 after Ctrl-C.
        return app(arguments, prog_name="pixelpod", standalone_mode=False) or ExitCode.OK
    except typer.TyperException as error:
        failure = CommandFailed(f"{error.format_message().rstrip('.')}. Try --help.", ExitCode.REFUSED)
    except CommandFailed as error:
        failure = error
    _show(failure, as_json="--json" in arguments)
    return failure.exit_code


def _show(failure: CommandFailed, as_json: bool) -> None:
    if as_json:
        error = {"message": failure.message, "exit_code": failure.exit_code, **failure.details}
        typer.echo(json.dumps({"error": error}))
    else:
        typer.echo(f"error: {' '.join(failure.message.splitlines())}", err=True)
