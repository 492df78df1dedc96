"""Command line parameters that several commands have."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

DEFAULT_ADDRESS = "127.0.0.1:7860"
"""Where a frontend listens when nothing else is said."""

NOWHERE = "none"
"""The address of a server that is not wanted."""

Server = Annotated[str, typer.Option(envvar="PIXELPOD_SERVER", help="The frontend's address, host:port.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, also for errors.")]

DeviceName = Literal["cpu", "tpu", "cuda"]
DEVICE = typer.Option(help="What the ranks compute on.")

LogFormatName = Literal["text", "json"]
LOG_FORMAT = typer.Option(help="How log lines look.")
