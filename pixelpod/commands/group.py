"""`pixelpod group`: runs a worker group."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pixelpod.commands.extras import importing
from pixelpod.commands.failure import CommandFailed
from pixelpod.commands.parameters import (
    DEVICE,
    LOG_FORMAT,
    DeviceName,
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


def group(
    model: Annotated[Path | None, typer.Option(metavar="FILE", help="The model file.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Rank processes on this host, one device each.")] = None,
    device: Annotated[DeviceName | None, DEVICE] = None,
    nodes: Annotated[int | None, typer.Option(help="Hosts of the group.")] = None,
    node_rank: Annotated[int | None, typer.Option(help="The number of this host, from 0.")] = None,
    rendezvous: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where node 0 listens for the other nodes, host:port.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where the endpoint listens, host:port.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where /metrics listens, host:port, or none.")
    ] = None,
    probes: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where Kubernetes' gRPC probes are answered, host:port.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The group's name, unique in the deployment.")] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where compiled programs are kept for the next start.")
    ] = None,
    max_restarts: Annotated[int | None, typer.Option(help="How often a broken world is started again.")] = None,
    queue_limit: Annotated[int | None, typer.Option(help="Images that wait for the device; more are refused.")] = None,
    drain_seconds: Annotated[
        float | None, typer.Option(help="After SIGTERM: how long accepted requests may still run.")
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
) -> int:
    """Run a worker group, which loads a model and computes images with it.

    What is left out is taken from PIXELPOD_GROUP_<SETTING>, as are the settings that have no option here.
    """
    with importing("worker"):
        from workers.errors import ModelRefused
        from workers.launcher import launch
        from workers.settings import GroupSettings
    from pixelpod.server.reloading import FileRefused
    from pixelpod.server.transport import AddressInUse, PlainTextRefused

    settings = settings_from(
        GroupSettings,
        model=model,
        ranks=ranks,
        device=device,
        nodes=nodes,
        node_rank=node_rank,
        rendezvous=rendezvous,
        listen=listen,
        metrics=metrics,
        probes=probes,
        name=name,
        cache_dir=cache_dir,
        max_restarts=max_restarts,
        queue_limit=queue_limit,
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
        return launch(settings)
    except (ModelRefused, FileRefused, PlainTextRefused) as error:
        raise CommandFailed(str(error), ExitCode.REFUSED) from error
    except AddressInUse as error:
        raise CommandFailed(str(error), ExitCode.ADDRESS_IN_USE) from error
