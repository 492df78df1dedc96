"""Command line parameters that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

DEFAULT_ADDRESS = "127.0.0.1:7860"
"""Where a frontend listens when nothing else is said."""

NOWHERE = "none"
"""The address of a server that is not wanted."""

Server = Annotated[str, typer.Option(envvar="PIXELPOD_SERVER", help="The frontend's address, host:port.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, also for errors.")]

Tls = Annotated[
    bool, typer.Option("--tls", envvar="PIXELPOD_TLS", help="Use TLS; any of the three files below says so too.")
]
TlsCa = Annotated[
    Path | None,
    typer.Option(metavar="FILE", envvar="PIXELPOD_TLS_CA", help="Authorities to believe, in PEM. Default: gRPC's own."),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(metavar="FILE", envvar="PIXELPOD_TLS_CERT", help="Certificate to show to the server, in PEM."),
]
TlsKey = Annotated[
    Path | None, typer.Option(metavar="FILE", envvar="PIXELPOD_TLS_KEY", help="The key of --tls-cert, in PEM.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", envvar="PIXELPOD_TOKEN_FILE", help="File with the token. Also: the token in PIXELPOD_TOKEN."
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Let the token leave this machine without TLS, where the network encrypts.")
]

ServerTlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="The server's certificate chain, in PEM.")
]
ServerTlsKey = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="The key of --tls-cert, in PEM.")]
ServerTlsClientCa = Annotated[
    Path | None,
    typer.Option("--tls-client-ca", metavar="FILE", help="Let in only clients with a certificate of these, in PEM."),
]
MetricsTlsCert = Annotated[
    Path | None, typer.Option("--metrics-tls-cert", metavar="FILE", help="Certificate chain of /metrics, in PEM.")
]
MetricsTlsKey = Annotated[
    Path | None, typer.Option("--metrics-tls-key", metavar="FILE", help="The key of --metrics-tls-cert, in PEM.")
]
MetricsTlsClientCa = Annotated[
    Path | None,
    typer.Option(
        "--metrics-tls-client-ca", metavar="FILE", help="Show /metrics only to certificates of these, in PEM."
    ),
]
Tokens = Annotated[
    Path | None, typer.Option("--tokens", metavar="FILE", help="Who may call; `pixelpod token` makes its entries.")
]
ServerInsecure = Annotated[
    bool | None, typer.Option("--insecure", help="Allow plain text beyond this machine, where the network encrypts.")
]

DeviceName = Literal["cpu", "tpu", "cuda"]
DEVICE = typer.Option(help="What the ranks compute on.")

LogFormatName = Literal["text", "json"]
LOG_FORMAT = typer.Option(help="How log lines look.")
