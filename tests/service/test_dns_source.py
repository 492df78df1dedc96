"""A DNS name's addresses, asked from a real name server on loopback."""

from __future__ import annotations

import io

import dns.rcode
import pytest

import service.dns_source
from service.dns_source import DnsSource
from service.sources import SourceFailed
from tests.service.dns_stub import DnsStub

NAME = "groups.pixelpod.example"


@pytest.fixture
def source(name_server: DnsStub) -> DnsSource:
    return DnsSource(f"{NAME}:7861", name_server.address)


async def test_every_address_of_both_kinds_at_every_look(name_server: DnsStub, source: DnsSource) -> None:
    name_server.records[NAME] = ["10.0.0.1", "10.0.0.2", "fd00::1"]
    assert await source.look() == {"10.0.0.1:7861", "10.0.0.2:7861", "[fd00::1]:7861"}
    name_server.records[NAME] = ["10.0.0.2", "10.0.0.3"]
    assert await source.look() == {"10.0.0.2:7861", "10.0.0.3:7861"}


async def test_more_addresses_than_a_datagram_holds(name_server: DnsStub, source: DnsSource) -> None:
    name_server.records[NAME] = [f"10.0.0.{number}" for number in range(1, 201)]
    assert await source.look() == {f"10.0.0.{number}:7861" for number in range(1, 201)}


async def test_unknown_name(source: DnsSource) -> None:
    with pytest.raises(SourceFailed, match="does not exist"):
        await source.look()


async def test_name_without_addresses(name_server: DnsStub, source: DnsSource) -> None:
    name_server.records[NAME] = []
    with pytest.raises(SourceFailed, match="does not contain an answer"):
        await source.look()


async def test_server_that_fails(name_server: DnsStub, source: DnsSource) -> None:
    name_server.rcode = dns.rcode.REFUSED
    with pytest.raises(SourceFailed, match="REFUSED"):
        await source.look()


async def test_server_that_says_nothing(
    name_server: DnsStub, source: DnsSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.dns_source, "LOOKUP_SECONDS", 0.3)
    name_server.silent = True
    with pytest.raises(SourceFailed, match="expired"):
        await source.look()


RESOLV_CONF = "nameserver {}\nsearch team.example pixelpod.example example\noptions ndots:5\n"
"""As in a pod: a short name is tried in every search domain before it is tried as it is."""


async def test_short_name_follows_the_search_domains_of_the_host(
    name_server: DnsStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_server.records[NAME] = ["10.0.0.1"]
    name_server.records["groups"] = ["10.0.0.9"]
    host, port = name_server.address.split(":")
    read = service.dns_source.Resolver.read_resolv_conf

    def read_this(resolver: service.dns_source.Resolver, _: object) -> None:
        read(resolver, io.StringIO(RESOLV_CONF.format(host)))
        resolver.port = int(port)

    monkeypatch.setattr(service.dns_source.Resolver, "read_resolv_conf", read_this)
    assert await DnsSource("groups:7861").look() == {"10.0.0.1:7861"}


async def test_host_without_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_servers(resolver: object, _: object) -> None:
        raise service.dns_source.DNSException("no nameservers")

    monkeypatch.setattr(service.dns_source.Resolver, "read_resolv_conf", no_servers)
    with pytest.raises(SourceFailed, match="no nameservers"):
        await DnsSource("groups:7861").look()
