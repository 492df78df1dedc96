"""How a frontend shows itself to groups, and believes them: TLS and a token, from files that may change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from pixelpod.server.authentication import TOKEN_KEY
from pixelpod.server.reloading import FileRefused, Reloaded, read_file
from pixelpod.server.tls import channel_credentials


class GroupAccess:
    """Opens channels to groups and tells what calls must carry, true to the files while `follow` runs.

    Args:
        ca_file: The authorities that groups' certificates come from; None: plain text.
        cert_file: What is shown to groups, for mutual TLS.
        key_file: The key of that.
        tls_name: The name in groups' certificates; empty: the address that is called.
        token_file: Holds the token that groups know this frontend by.

    Raises:
        FileRefused: if a file can't be used.
    """

    def __init__(
        self,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        tls_name: str = "",
        token_file: Path | None = None,
    ) -> None:
        self._tls_name = tls_name
        self._credentials = None if ca_file is None else channel_credentials(ca_file, cert_file, key_file)
        self._token = None if token_file is None else Reloaded([token_file], lambda: read_token(token_file))

    @property
    def credentials(self) -> grpc.ChannelCredentials | None:
        """What a channel opened now has; another object after its files changed."""
        return None if self._credentials is None else self._credentials.value

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a call made now carries."""
        return () if self._token is None else ((TOKEN_KEY, f"Bearer {self._token.value}"),)

    def open_channel(self, address: str, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
        """Return a channel to the group at `address`."""
        credentials = self.credentials
        if credentials is None:
            return grpc.aio.insecure_channel(address, options)
        name = [("grpc.ssl_target_name_override", self._tls_name)] if self._tls_name else []
        return grpc.aio.secure_channel(address, credentials, [*options, *name])

    async def follow(self) -> None:
        """Follow the files until cancelled."""
        files: list[Reloaded[Any] | None] = [self._credentials, self._token]
        await asyncio.gather(*(file.follow() for file in files if file is not None))


PLAIN_TEXT = GroupAccess()
"""Neither TLS nor a token."""


def read_token(file: Path) -> str:
    """Return the token in `file`, without the white space around it.

    Raises:
        FileRefused: if there is no token.
    """
    try:
        token = read_file(file).decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable():
        raise FileRefused(f"{file} must hold a token and nothing else")
    return token
