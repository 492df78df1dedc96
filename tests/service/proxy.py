"""A TCP proxy that breaks connections, as networks do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

PIECE_BYTES = 65536


class BreakingProxy:
    """Forwards connections to a port of this machine, and breaks the first ones.

    Args:
        port: Where to forward to; may be changed for later connections.
        budgets: After how many bytes to the client the n-th connection breaks; later ones do not.
    """

    def __init__(self, port: int, budgets: Iterable[int] = ()) -> None:
        self.port = port
        self.address = ""
        self.connections = 0
        self._budgets = iter(budgets)
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break all connections, without a farewell."""
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        budget = next(self._budgets, None)
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self.port)
        pair = {writer, onward_writer}
        self._open |= pair
        forwarding = [
            asyncio.create_task(_forward(reader, onward_writer, None)),
            asyncio.create_task(_forward(onward_reader, writer, budget)),
        ]
        await asyncio.wait(forwarding, return_when=asyncio.FIRST_COMPLETED)
        for task in forwarding:
            task.cancel()
        for each in pair:
            each.transport.abort()
        self._open -= pair


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None) -> None:
    """Forward until the end of the stream, or until `budget` bytes went through."""
    try:
        while budget is None or budget > 0:
            piece = await reader.read(PIECE_BYTES if budget is None else min(PIECE_BYTES, budget))
            if not piece:
                return
            writer.write(piece)
            await writer.drain()
            if budget is not None:
                budget -= len(piece)
    except ConnectionError:
        return
