"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Self, Unpack

import grpc

from pixelpod.client.assembly import Assembly
from pixelpod.client.channel import ConnectionOptions, call_metadata, open_aio_channel
from pixelpod.client.errors import error_from_call
from pixelpod.client.events import Accepted, Done, Event, Progress
from pixelpod.client.models import Model, model_from
from pixelpod.client.options import GenerateOptions, GenerateParameters, build_request, with_parameters
from pixelpod.client.result import Generation
from pixelpod.client.resumption import Resumption
from pixelpod.v1 import images_pb2, images_pb2_grpc


class AsyncClient:
    """Talks to a frontend over one connection. An asynchronous context manager; or await `close()`.

    Every method raises `PixelpodError` when the call ends without its result. Cancelling a task cancels its call.

    Args:
        address: The frontend's "host:port".
        options: TLS and a token, where the frontend needs them.

    Raises:
        ValueError: if `options` contradict each other, or would show the token to others.
        OSError: if a file can't be read.
    """

    def __init__(self, address: str, **options: Unpack[ConnectionOptions]) -> None:
        self._address = address
        self._closed = False
        self._metadata = call_metadata(address, **options)
        self._channel = open_aio_channel(address, **options)
        self._stub = images_pb2_grpc.ImageGenerationStub(self._channel)

    async def generate(
        self,
        prompt: str | GenerateOptions,
        *,
        deadline_seconds: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        **parameters: Unpack[GenerateParameters],
    ) -> Generation:
        """Make images and wait for them. Their size is not limited. Arguments as in `Client.generate`."""
        assembly = Assembly()
        request = build_request(with_parameters(prompt, **parameters))
        async with aclosing(self._receive(request, deadline_seconds, assembly)) as events:
            async for event in events:
                if on_progress and isinstance(event, Progress):
                    on_progress(event)
        return assembly.generation()

    async def stream(
        self,
        prompt: str | GenerateOptions,
        *,
        deadline_seconds: float | None = None,
        **parameters: Unpack[GenerateParameters],
    ) -> AsyncGenerator[Event, None]:
        """Make images and tell how it goes: yields Accepted, any number of Progress, then Done.

        The call begins with the first iteration. Closing the generator before Done cancels it; leaving the loop early
        does not close it, so use contextlib.aclosing. Arguments as in `Client.generate`.
        """
        assembly = Assembly()
        request = build_request(with_parameters(prompt, **parameters))
        async with aclosing(self._receive(request, deadline_seconds, assembly)) as events:
            async for event in events:
                yield event
        yield Done(assembly.generation())

    async def models(self, *, deadline_seconds: float | None = None) -> list[Model]:
        """Return the models that are served now, ordered by name."""
        try:
            answer = await self._stub.ListModels(
                images_pb2.ListModelsRequest(), timeout=deadline_seconds, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise error_from_call(error, self._address) from error
        return [model_from(message) for message in answer.models]

    async def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        self._closed = True
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _receive(
        self, request: images_pb2.GenerateRequest, deadline_seconds: float | None, assembly: Assembly
    ) -> AsyncGenerator[Accepted | Progress, None]:
        """Run the call, fill `assembly`, and yield the events before the end. However it is left, the call is over.

        A stream that breaks is taken up again.
        """
        resumption = Resumption(request, deadline_seconds, assembly)
        while True:
            call = self._stub.GenerateStream(
                resumption.request(), timeout=resumption.seconds_left, metadata=self._metadata
            )
            try:
                async for message in call:
                    if event := assembly.take(message):
                        yield event
                return
            except grpc.RpcError as error:
                broken = error_from_call(error, self._address)
                broken.__cause__ = error
            finally:
                call.cancel()
            await asyncio.sleep(resumption.pause_seconds(broken))
            if self._closed:
                raise broken
