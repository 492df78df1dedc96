"""A name server on loopback, over UDP and TCP, whose records tests change while it runs."""

from __future__ import annotations

import asyncio
import ipaddress
import struct

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

UDP_BYTES = 512
"""What a UDP answer may hold; the rest is for TCP."""


class DnsStub(asyncio.DatagramProtocol):
    """Answers A and AAAA. Tests set `records`, name to addresses, and what else goes wrong."""

    def __init__(self) -> None:
        self.records: dict[str, list[str]] = {}
        self.rcode = dns.rcode.NOERROR
        """Anything else is the answer to every question."""
        self.silent = False
        self.questions = 0
        self.address = ""
        self._udp: asyncio.DatagramTransport | None = None
        self._tcp: asyncio.Server | None = None

    async def start(self) -> None:
        self._tcp = await asyncio.start_server(self._serve_tcp, "127.0.0.1", 0)
        port = self._tcp.sockets[0].getsockname()[1]
        self._udp, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", port)
        )
        self.address = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        self._udp.close()
        self._tcp.close()
        await self._tcp.wait_closed()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self.silent:
            return
        answer = self._answer(data)
        wire = answer.to_wire(max_size=65535)
        if len(wire) > UDP_BYTES:
            answer.flags |= dns.flags.TC
            answer.answer.clear()
            wire = answer.to_wire()
        self._udp.sendto(wire, addr)

    async def _serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        wire = self._answer(await reader.readexactly(length)).to_wire()
        writer.write(struct.pack("!H", len(wire)) + wire)
        await writer.drain()
        writer.close()

    def _answer(self, data: bytes) -> dns.message.Message:
        self.questions += 1
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query)
        (question,) = query.question
        name = question.name.to_text(omit_final_dot=True)
        answer.set_rcode(self.rcode)
        if self.rcode == dns.rcode.NOERROR and name not in self.records:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif self.rcode == dns.rcode.NOERROR:
            version = 4 if question.rdtype == dns.rdatatype.A else 6
            addresses = [a for a in self.records[name] if ipaddress.ip_address(a).version == version]
            if addresses:
                answer.answer.append(dns.rrset.from_text_list(question.name, 5, "IN", question.rdtype, addresses))
        return answer
