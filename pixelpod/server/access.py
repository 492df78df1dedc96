"""Access to a server: TLS and tokens, as settings and as what a gRPC server takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import grpc
from pydantic import model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from pixelpod.server.authentication import TokenInterceptor
from pixelpod.server.callers import read_tokens_file
from pixelpod.server.errors import ErrorInterceptor
from pixelpod.server.reloading import Reloaded
from pixelpod.server.tls import server_certificates, server_credentials

HEALTH_SERVICE = "grpc.health.v1.Health"


class AccessSettings(BaseSettings):
    """Settings that every server of ours has. Files are read again when they change."""

    model_config = SettingsConfigDict(frozen=True, use_attribute_docstrings=True)

    tls_cert_file: Path | None = None
    """PEM file with the server's certificate chain; None: plain text. Needs tls_key_file."""
    tls_key_file: Path | None = None
    """PEM file with the certificate's private key, without a password."""
    tls_client_ca_file: Path | None = None
    """PEM file with the authorities whose certificates clients must show (mutual TLS); None: clients need none."""
    tokens_file: Path | None = None
    """JSON file of the callers and hashes of their tokens, see docs/security.md; None: everybody may call."""
    insecure: bool = False
    """Whether plain text may leave this machine, for networks that encrypt by themselves."""
    health_needs_token: bool = False
    """Whether grpc.health.v1 needs a token, where there are tokens. Most probes can't send one."""

    @model_validator(mode="after")
    def _consistent_access(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise ValueError("tls_client_ca_file needs tls_cert_file and tls_key_file")
        return self


class Access:
    """What lets callers into one server, true to the files while `follow` runs.

    Args:
        settings: Of the server.
        limits_apply: Whether the server holds callers to the limits that its tokens file may set.
        open_services: Full names of services that need no token, beside health.
        on_refusal: Called with the reason whenever a call has no token that is known.

    Raises:
        FileRefused: if a file can't be used.
    """

    def __init__(
        self,
        settings: AccessSettings,
        *,
        limits_apply: bool,
        open_services: Iterable[str] = (),
        on_refusal: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._followed: list[Reloaded[Any]] = []
        self.credentials: grpc.ServerCredentials | None = None
        """For TLS; None for plain text."""
        self.interceptors: tuple[grpc.aio.ServerInterceptor, ...] = (ErrorInterceptor(),)
        """Of the gRPC server, in their order."""
        if settings.tls_cert_file is not None and settings.tls_key_file is not None:
            client_ca_file = settings.tls_client_ca_file
            certificates = server_certificates(settings.tls_cert_file, settings.tls_key_file, client_ca_file)
            self.credentials = server_credentials(certificates, clients_need_certificate=client_ca_file is not None)
            self._followed.append(certificates)
        if settings.tokens_file is not None:
            tokens = read_tokens_file(settings.tokens_file, limits_apply=limits_apply)
            health = () if settings.health_needs_token else (HEALTH_SERVICE,)
            self.interceptors += (TokenInterceptor(tokens, (*health, *open_services), on_refusal),)
            self._followed.append(tokens)

    async def follow(self) -> None:
        """Follow the files until cancelled."""
        await asyncio.gather(*(files.follow() for files in self._followed))
