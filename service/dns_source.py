"""Groups by DNS name, such as a headless Service's, whose every address is one group."""

from __future__ import annotations

import asyncio

from dns.asyncresolver import Resolver
from dns.exception import DNSException

from service.addresses import split_address
from service.sources import SourceFailed

LOOKUP_SECONDS = 5.0
"""Longest time of one lookup, all its servers, search domains and retries together."""


class DnsSource:
    """Lists every IPv4 and IPv6 address of a name, each with the same port.

    Search domains and `ndots` are those of /etc/resolv.conf, so a short name of the same namespace is enough. Nothing
    is cached: how old an answer may be is the name server's affair.

    Args:
        target: What to look up, name:port.
        server: The name server to ask, address:port; None for those of /etc/resolv.conf.
    """

    kind = "dns"

    def __init__(self, target: str, server: str | None = None) -> None:
        self.name = target
        self._host, self._port = split_address(target)
        self._server = server

    async def look(self) -> frozenset[str]:
        """Ask for both kinds of addresses.

        Raises:
            SourceFailed: if no server answers, or the name does not exist or has no address.
        """
        try:
            resolver = await asyncio.to_thread(self._resolver)
            answers = await resolver.resolve_name(self._host, search=True, lifetime=LOOKUP_SECONDS)
        except (DNSException, OSError) as error:
            raise SourceFailed(str(error)) from error
        return frozenset(
            f"[{address}]:{self._port}" if ":" in address else f"{address}:{self._port}"
            for address in answers.addresses()
        )

    def _resolver(self) -> Resolver:
        """Read /etc/resolv.conf, which may have changed since the last lookup."""
        if self._server is None:
            return Resolver()
        resolver = Resolver(configure=False)
        host, resolver.port = split_address(self._server)
        resolver.nameservers = [host]
        return resolver
