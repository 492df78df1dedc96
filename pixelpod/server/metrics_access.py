"""HTTPS for /metrics: settings of every server of ours, and the TLS context that follows their files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Self

from pydantic import model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from pixelpod.server.reloading import FileRefused, Reloaded, read_file


class MetricsAccessSettings(BaseSettings):
    """Settings of who may read /metrics. Files are read again when they change."""

    model_config = SettingsConfigDict(frozen=True, use_attribute_docstrings=True)

    metrics_tls_cert_file: Path | None = None
    """PEM file with the certificate chain of /metrics; None: plain HTTP. Needs metrics_tls_key_file."""
    metrics_tls_key_file: Path | None = None
    """PEM file with that certificate's private key, without a password."""
    metrics_tls_client_ca_file: Path | None = None
    """PEM file with the authorities whose certificates readers of /metrics must show; None: they need none."""

    @model_validator(mode="after")
    def _consistent_metrics_access(self) -> Self:
        if (self.metrics_tls_cert_file is None) != (self.metrics_tls_key_file is None):
            raise ValueError("metrics_tls_cert_file and metrics_tls_key_file go together")
        if self.metrics_tls_client_ca_file is not None and self.metrics_tls_cert_file is None:
            raise ValueError("metrics_tls_client_ca_file needs metrics_tls_cert_file and metrics_tls_key_file")
        return self


def metrics_certificates(settings: MetricsAccessSettings) -> Reloaded[ssl.SSLContext] | None:
    """Return what /metrics encrypts with, which follows its files when it is refreshed; None for plain HTTP.

    Raises:
        FileRefused: if a file can't be used, or the key is not the certificate's.
    """
    cert_file, key_file = settings.metrics_tls_cert_file, settings.metrics_tls_key_file
    client_ca_file = settings.metrics_tls_client_ca_file
    if cert_file is None or key_file is None:
        return None

    files = [file for file in (cert_file, key_file, client_ca_file) if file is not None]

    def load() -> ssl.SSLContext:
        for file in files:
            read_file(file)  # which says of a file that is not there which one it is
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # The password keeps OpenSSL from asking for one on a terminal.
            context.load_cert_chain(cert_file, key_file, password="")
        except (OSError, ValueError) as error:
            raise FileRefused(f"{cert_file} and {key_file} are no certificate and its key in PEM: {error}") from error
        if client_ca_file is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(client_ca_file)
            except (OSError, ValueError) as error:
                raise FileRefused(f"{client_ca_file} holds no certificates in PEM: {error}") from error
        return context

    return Reloaded(files, load)
