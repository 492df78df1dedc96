"""Addresses, host:port."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Address = Annotated[str, Field(pattern=r"^\S+:\d{1,5}$")]
"""host:port; an IPv6 address in brackets."""


def split_address(address: str) -> tuple[str, int]:
    """Return the host of an `Address`, without brackets, and its port."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
