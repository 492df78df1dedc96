"""Both clients behind one blocking interface, so that each test holds for both."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from pixelpod.client import AsyncClient, Client, ConnectionOptions, Event, Generation, Model


class SyncCaller:
    connection: ConnectionOptions = {}  # noqa: RUF012 -- replaced by tests, never changed

    def generate(self, address: str, prompt: Any = "a red fox", **arguments: Any) -> Generation:
        with Client(address, **self.connection) as client:
            return client.generate(prompt, **arguments)

    def stream(self, address: str, limit: int = 1_000, **arguments: Any) -> list[Event]:
        """Return the first `limit` events, and close the stream after them."""
        with Client(address, **self.connection) as client:
            events = client.stream("a red fox", **arguments)
            taken = [event for _, event in zip(range(limit), events, strict=False)]
            events.close()
            return taken

    def models(self, address: str, **arguments: Any) -> list[Model]:
        with Client(address, **self.connection) as client:
            return client.models(**arguments)


class AsyncCaller:
    connection: ConnectionOptions = {}  # noqa: RUF012 -- replaced by tests, never changed

    def generate(self, address: str, prompt: Any = "a red fox", **arguments: Any) -> Generation:
        async def call() -> Generation:
            async with AsyncClient(address, **self.connection) as client:
                return await client.generate(prompt, **arguments)

        return asyncio.run(call())

    def stream(self, address: str, limit: int = 1_000, **arguments: Any) -> list[Event]:
        async def call() -> list[Event]:
            taken: list[Event] = []
            async with (
                AsyncClient(address, **self.connection) as client,
                aclosing(client.stream("a red fox", **arguments)) as events,
            ):
                async for event in events:
                    taken.append(event)
                    if len(taken) == limit:
                        break
            return taken

        return asyncio.run(call())

    def models(self, address: str, **arguments: Any) -> list[Model]:
        async def call() -> list[Model]:
            async with AsyncClient(address, **self.connection) as client:
                return await client.models(**arguments)

        return asyncio.run(call())


Caller = SyncCaller | AsyncCaller


@pytest.fixture(params=[SyncCaller, AsyncCaller], ids=["sync", "async"])
def caller(request: pytest.FixtureRequest) -> Caller:
    return request.param()
