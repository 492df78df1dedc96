"""`pixelpod models`: tells what a frontend serves."""

from __future__ import annotations

from typing import Annotated

import typer

from pixelpod.commands.parameters import (
    DEFAULT_ADDRESS,
    Insecure,
    Json,
    Server,
    Tls,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
)


def models(
    server: Server = DEFAULT_ADDRESS,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    deadline: Annotated[float, typer.Option(metavar="SECONDS", help="When to give up.")] = 10.0,
    as_json: Json = False,
) -> None:
    """List the models that are served to you, with their limits and defaults."""
    from pixelpod.commands import report
    from pixelpod.commands.connection import connected, connection_options

    connection = connection_options(
        tls=tls, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, token_file=token_file, insecure=insecure
    )
    with connected(server, **connection) as client:
        served = client.models(deadline_seconds=deadline)
    if as_json:
        report.print_models_json(served)
    else:
        report.print_models(served)
