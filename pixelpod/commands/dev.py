"""`pixelpod dev`: a frontend and one group on this machine, with one command."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from pixelpod.commands.addresses import free_address, reachable, with_port
from pixelpod.commands.default_model import default_model_file
from pixelpod.commands.extras import require
from pixelpod.commands.failure import CommandFailed
from pixelpod.commands.parameters import (
    DEFAULT_ADDRESS,
    DEVICE,
    LOG_FORMAT,
    NOWHERE,
    DeviceName,
    LogFormatName,
    ServerInsecure,
)
from pixelpod.commands.programs import run_program
from pixelpod.exit_codes import ExitCode

DRAIN_SECONDS = 3.0
"""How long the frontend may finish requests after Ctrl-C."""


def dev(
    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="Where the API listens, host:port.")] = DEFAULT_ADDRESS,
    metrics: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where the frontend's /metrics listens, host:port, or none.")
    ] = "127.0.0.1:9090",
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The model file. Default: the demo model, which draws coloured shapes."),
    ] = None,
    ranks: Annotated[int, typer.Option(help="Rank processes of the group, one device each.")] = 2,
    device: Annotated[DeviceName, DEVICE] = "cpu",
    insecure: ServerInsecure = None,
    log_format: Annotated[LogFormatName, LOG_FORMAT] = "text",
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Make one image of this, then stop. Needs --output.")
    ] = None,
    output: Annotated[str | None, typer.Option(metavar="FILE", help="Where to write the image of --prompt.")] = None,
) -> None:
    """Run a frontend and one group on this machine until Ctrl-C, or for one image."""
    if (prompt is None) != (output is None):
        raise typer.BadParameter("--prompt and --output go together")
    require("service", "grpc_health")
    require("worker", "torch")
    from pixelpod.commands.deployment import Deployment, until_signal

    listen, group, group_metrics = with_port(listen, "--listen"), free_address(), free_address()
    metrics = metrics if metrics == NOWHERE else with_port(metrics, "--metrics")
    model_file = model or default_model_file()
    program = (sys.executable, "-m", "pixelpod")
    deployment = Deployment(
        group_argv=(
            *(*program, "group", "--model", str(model_file), "--ranks", str(ranks), "--device", device),
            *("--listen", group, "--metrics", group_metrics, "--log-format", log_format),
        ),
        group_address=group,
        frontend_argv=(
            *(*program, "serve", "--group", group, "--listen", listen, "--metrics", metrics),
            *("--drain-delay-seconds", "0", "--drain-seconds", str(DRAIN_SECONDS), "--log-format", log_format),
            *(("--insecure",) if insecure else ()),
        ),
        frontend_address=reachable(listen),
    )

    async def serve() -> None:
        server = "" if listen == DEFAULT_ADDRESS else f" --server {reachable(listen)}"
        typer.echo(f"ready: {listen} serves {model_file} with {ranks} ranks")
        if metrics != NOWHERE:
            typer.echo(f"metrics of the frontend: http://{reachable(metrics)}/metrics")
        typer.echo(f"metrics of the group: http://{group_metrics}/metrics")
        typer.echo(f'try: pixelpod generate "two green squares on black" -o squares.png{server}')
        await asyncio.Event().wait()

    async def make_image(prompt: str, output: str) -> None:
        exit_code, _ = await run_program(
            *program, "generate", prompt, "--output", output, "--server", reachable(listen)
        )
        if exit_code != 0:
            raise CommandFailed(f"the image was not made: exit code {exit_code}", ExitCode(exit_code))

    async def run() -> None:
        if prompt is None or output is None:
            await deployment.run(_tell, serve)
        else:
            await deployment.run(_tell, lambda: make_image(prompt, output))

    asyncio.run(until_signal(run()))


def _tell(line: str) -> None:
    typer.echo(line, err=True)
