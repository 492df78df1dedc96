"""HTTP/2 connections whose peer may send no byte of an answer: the window of every stream is 0 until it is opened.

A few frames by hand (RFC 9113), since gRPC's clients always take the first bytes of an answer.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Self

from google.protobuf.message import Message

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE = 4
_FRAME_HEADER_BYTES = 9


class StalledReader:
    """One connection that makes calls and takes nothing of their answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._last_stream = -1
        self.ended: dict[int, bytes] = {}
        """Header block of the trailers of each stream that ended, or empty for a stream that was reset."""
        self.data_bytes = 0
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, port: int) -> Self:
        """Open a connection to a server in plain text on loopback."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, 0)))
        return cls(reader, writer)

    async def call(self, method: str, request: Message, *metadata: tuple[str, str]) -> int:
        """Begin a call and return its stream."""
        self._last_stream += 2
        stream = self._last_stream
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *metadata,
        ]
        encoded = b"".join(_literal(name) + _literal(value, prefix=b"") for name, value in headers)
        message = request.SerializeToString()
        self._writer.write(
            _frame(_HEADERS, _END_HEADERS, stream, encoded)
            + _frame(_DATA, _END_STREAM, stream, struct.pack(">BI", 0, len(message)) + message)
        )
        await self._writer.drain()
        return stream

    async def close(self) -> None:
        self._reading.cancel()
        self._writer.close()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            header = await self._reader.readexactly(_FRAME_HEADER_BYTES)
            kind, flags, stream = header[3], header[4], int.from_bytes(header[5:], "big")
            payload = await self._reader.readexactly(int.from_bytes(header[:3], "big"))
            if kind == _PING and not flags & _ACK:
                self._writer.write(_frame(_PING, _ACK, 0, payload))
            elif kind == _DATA:
                self.data_bytes += len(payload)
            elif kind == _RST_STREAM:
                self.ended.setdefault(stream, b"")
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                self.ended[stream] = payload


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(text: str, prefix: bytes = b"\x00") -> bytes:
    """Return a string as HPACK has it, not compressed and, with the prefix, not indexed (RFC 7541, 6.2.2)."""
    return prefix + bytes([len(text)]) + text.encode()
