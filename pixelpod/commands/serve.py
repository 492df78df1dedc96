"""`pixelpod serve`: runs a frontend."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from pixelpod.commands.extras import importing
from pixelpod.commands.failure import CommandFailed
from pixelpod.commands.parameters import LOG_FORMAT, LogFormatName
from pixelpod.commands.settings import settings_from
from pixelpod.exit_codes import ExitCode


def serve(
    group: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="A group's address; repeat for more.")
    ] = None,
    listen: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Where the API listens, host:port.")] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where /metrics listens, host:port, or none.")
    ] = None,
    probes: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where Kubernetes' gRPC probes are answered, host:port.")
    ] = None,
    drain_delay_seconds: Annotated[
        float | None, typer.Option(help="After SIGTERM: how long to take requests while health says NOT_SERVING.")
    ] = None,
    drain_seconds: Annotated[
        float | None, typer.Option(help="After that: how long accepted requests may still run.")
    ] = None,
    log_format: Annotated[LogFormatName | None, LOG_FORMAT] = None,
) -> None:
    """Run a frontend, which validates requests and routes them to groups.

    What is left out is taken from PIXELPOD_FRONTEND_<SETTING>, as are the settings that have no option here.
    """
    with importing("service"):
        from service.frontend import run
        from service.settings import FrontendSettings
    from pixelpod.server.transport import AddressInUse

    settings = settings_from(
        FrontendSettings,
        groups=tuple(group) if group else None,
        listen=listen,
        metrics=metrics,
        probes=probes,
        drain_delay_seconds=drain_delay_seconds,
        drain_seconds=drain_seconds,
        log_format=log_format,
    )
    try:
        asyncio.run(run(settings))
    except AddressInUse as error:
        raise CommandFailed(str(error), ExitCode.ADDRESS_IN_USE) from error
