"""The client for ordinary, blocking code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from types import TracebackType
from typing import Self, Unpack

import grpc

from pixelpod.client.assembly import Assembly
from pixelpod.client.channel import ConnectionOptions, call_metadata, open_channel
from pixelpod.client.errors import error_from_call
from pixelpod.client.events import Accepted, Done, Event, Progress
from pixelpod.client.models import Model, model_from
from pixelpod.client.options import GenerateOptions, GenerateParameters, build_request, with_parameters
from pixelpod.client.result import Generation
from pixelpod.client.resumption import Resumption
from pixelpod.v1 import images_pb2, images_pb2_grpc


class Client:
    """Talks to a frontend over one connection. Threads may share it. A context manager; or call `close()`.

    Every method raises `PixelpodError` when the call ends without its result.

    Args:
        address: The frontend's "host:port".
        options: TLS and a token, where the frontend needs them.

    Raises:
        ValueError: if `options` contradict each other, or would show the token to others.
        OSError: if a file can't be read.
    """

    def __init__(self, address: str, **options: Unpack[ConnectionOptions]) -> None:
        self._address = address
        self._closed = threading.Event()
        self._metadata = call_metadata(address, **options)
        self._channel = open_channel(address, **options)
        self._stub = images_pb2_grpc.ImageGenerationStub(self._channel)

    def generate(
        self,
        prompt: str | GenerateOptions,
        *,
        deadline_seconds: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        **parameters: Unpack[GenerateParameters],
    ) -> Generation:
        """Make images and wait for them. Their size is not limited.

        Args:
            prompt: What to draw, or all options at once.
            deadline_seconds: When to give up; None leaves it to the server.
            on_progress: Called with each progress event.
            parameters: Fields of `GenerateOptions`; they go before those of given options.
        """
        assembly = Assembly()
        request = build_request(with_parameters(prompt, **parameters))
        with closing(self._receive(request, deadline_seconds, assembly)) as events:
            for event in events:
                if on_progress and isinstance(event, Progress):
                    on_progress(event)
        return assembly.generation()

    def stream(
        self,
        prompt: str | GenerateOptions,
        *,
        deadline_seconds: float | None = None,
        **parameters: Unpack[GenerateParameters],
    ) -> Generator[Event, None, None]:
        """Make images and tell how it goes: yields Accepted, any number of Progress, then Done.

        The call begins with the first iteration. Closing the generator before Done cancels it.
        Arguments as in `generate`.
        """
        assembly = Assembly()
        request = build_request(with_parameters(prompt, **parameters))
        yield from self._receive(request, deadline_seconds, assembly)
        yield Done(assembly.generation())

    def models(self, *, deadline_seconds: float | None = None) -> list[Model]:
        """Return the models that are served now, ordered by name."""
        try:
            answer = self._stub.ListModels(
                images_pb2.ListModelsRequest(), timeout=deadline_seconds, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise error_from_call(error, self._address) from error
        return [model_from(message) for message in answer.models]

    def close(self) -> None:
        """Close the connection; calls under way end with RequestCancelledError."""
        self._closed.set()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _receive(
        self, request: images_pb2.GenerateRequest, deadline_seconds: float | None, assembly: Assembly
    ) -> Generator[Accepted | Progress, None, None]:
        """Run the call, fill `assembly`, and yield the events before the end. However it is left, the call is over.

        A stream that breaks is taken up again.
        """
        resumption = Resumption(request, deadline_seconds, assembly)
        while True:
            call = self._stub.GenerateStream(
                resumption.request(), timeout=resumption.seconds_left, metadata=self._metadata
            )
            try:
                for message in call:
                    if event := assembly.take(message):
                        yield event
                return
            except grpc.RpcError as error:
                broken = error_from_call(error, self._address)
                broken.__cause__ = error
            finally:
                call.cancel()
            if self._closed.wait(resumption.pause_seconds(broken)):
                raise broken
