"""`pixelpod serve`: runs a frontend."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pixelpod.commands.extras import importing
from pixelpod.commands.failure import CommandFailed
from pixelpod.commands.parameters import (
    LOG_FORMAT,
    LogFormatName,
    MetricsTlsCert,
    MetricsTlsClientCa,
    MetricsTlsKey,
    ServerInsecure,
    ServerTlsCert,
    ServerTlsClientCa,
    ServerTlsKey,
    Tokens,
)
from pixelpod.commands.settings import settings_from
from pixelpod.exit_codes import ExitCode


def serve(
    group: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="A group's address; repeat for more.")
    ] = None,
    groups_dns: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:PORT", help="A DNS name, each address of which is a group; repeat for more."),
    ] = None,
    groups_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file of groups' addresses, one a line; it may change.")
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
    tls_cert: ServerTlsCert = None,
    tls_key: ServerTlsKey = None,
    tls_client_ca: ServerTlsClientCa = None,
    metrics_tls_cert: MetricsTlsCert = None,
    metrics_tls_key: MetricsTlsKey = None,
    metrics_tls_client_ca: MetricsTlsClientCa = None,
    tokens: Tokens = None,
    insecure: ServerInsecure = None,
    log_format: Annotated[LogFormatName | None, LOG_FORMAT] = None,
) -> None:
    """Run a frontend, which validates requests and routes them to groups. The ways to name groups add up.

    What is left out is taken from PIXELPOD_FRONTEND_<SETTING>, as are the settings that have no option here.
    """
    with importing("service"):
        import uvloop

        from service.frontend import run
        from service.settings import FrontendSettings
    from pixelpod.server.reloading import FileRefused
    from pixelpod.server.transport import AddressInUse, PlainTextRefused

    settings = settings_from(
        FrontendSettings,
        groups=tuple(group) if group else None,
        groups_dns=tuple(groups_dns) if groups_dns else None,
        groups_file=groups_file,
        listen=listen,
        metrics=metrics,
        probes=probes,
        drain_delay_seconds=drain_delay_seconds,
        drain_seconds=drain_seconds,
        tls_cert_file=tls_cert,
        tls_key_file=tls_key,
        tls_client_ca_file=tls_client_ca,
        metrics_tls_cert_file=metrics_tls_cert,
        metrics_tls_key_file=metrics_tls_key,
        metrics_tls_client_ca_file=metrics_tls_client_ca,
        tokens_file=tokens,
        insecure=insecure,
        log_format=log_format,
    )
    try:
        uvloop.run(run(settings))
    except (FileRefused, PlainTextRefused) as error:
        raise CommandFailed(str(error), ExitCode.REFUSED) from error
    except AddressInUse as error:
        raise CommandFailed(str(error), ExitCode.ADDRESS_IN_USE) from error
