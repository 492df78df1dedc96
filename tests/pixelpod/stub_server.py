"""A real gRPC server of ImageGeneration whose answers are scripted; it runs on a thread of its own."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

import grpc

from pixelpod.server.access import Access, AccessSettings
from pixelpod.server.callers import current_caller
from pixelpod.server.transport import SERVER_OPTIONS, listen
from pixelpod.v1 import images_pb2, images_pb2_grpc

START_SECONDS = 10.0
CHUNK_BYTES = 900_000

Script = Callable[[images_pb2.GenerateRequest], AsyncIterator[images_pb2.GenerateEvent]]


class Stopping(Exception):
    """Raised by a script: the call ends as gRPC ends those that arrive just as a server stops."""


class StubServer(images_pb2_grpc.ImageGenerationServicer):
    """Answers GenerateStream with `script` and ListModels with `models`; remembers what it was asked.

    Args:
        access: Settings of who may call it.
    """

    def __init__(self, **access: object) -> None:
        self._access = Access(AccessSettings(**access), limits_apply=True)
        self.script: Script = answer([b"an image"])
        self.models: Callable[[], images_pb2.ListModelsResponse] = images_pb2.ListModelsResponse
        self.requests: list[images_pb2.GenerateRequest] = []
        self.callers: list[str] = []
        self.model_calls = 0
        self.called = threading.Event()
        self.cancelled = threading.Event()
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(START_SECONDS)
        self._loop.close()

    async def GenerateStream(  # noqa: N802 -- gRPC's name
        self, request: images_pb2.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[images_pb2.GenerateEvent]:
        self.requests.append(request)
        self.callers.append(current_caller().name)
        self.called.set()
        try:
            async for event in self.script(request):
                yield event
        except Stopping:
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        except (asyncio.CancelledError, GeneratorExit):  # the latter where the caller left while an event was sent
            self.cancelled.set()
            raise

    async def ListModels(  # noqa: N802 -- gRPC's name
        self, request: images_pb2.ListModelsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> images_pb2.ListModelsResponse:
        self.callers.append(current_caller().name)
        self.model_calls += 1
        return self.models()

    async def _serve(self) -> None:
        server = grpc.aio.server(interceptors=self._access.interceptors, options=SERVER_OPTIONS)
        images_pb2_grpc.add_ImageGenerationServicer_to_server(self, server)
        self.address = f"127.0.0.1:{listen(server, '127.0.0.1:0', self._access.credentials)}"
        await server.start()
        self._started.set()
        await self._stopping.wait()
        await server.stop(grace=None)


def accepted(request: images_pb2.GenerateRequest, answer_id: str = "") -> images_pb2.GenerateEvent:
    return images_pb2.GenerateEvent(
        accepted=images_pb2.Accepted(
            request_id=request.request_id, position=2, predicted_seconds=1.5, answer_id=answer_id
        )
    )


def progress(step: int, steps: int) -> images_pb2.GenerateEvent:
    return images_pb2.GenerateEvent(progress=images_pb2.Progress(step=step, steps=steps, seconds_left=steps - step))


def chunks(index: int, file: bytes) -> list[images_pb2.GenerateEvent]:
    return [
        images_pb2.GenerateEvent(
            image_chunk=images_pb2.ImageChunk(index=index, offset=offset, data=file[offset : offset + CHUNK_BYTES])
        )
        for offset in range(0, len(file), CHUNK_BYTES)
    ]


def closing(request: images_pb2.GenerateRequest, files: Sequence[bytes]) -> images_pb2.GenerateResponse:
    """Return the closing message of a request for 64x64 images that are `files`, with a warning."""
    seeds = [request.seed + index for index in range(len(files))]
    return images_pb2.GenerateResponse(
        request_id=request.request_id,
        images=[
            images_pb2.Image(
                media_type="image/png",
                width=64,
                height=64,
                seed=seed,
                index=index,
                sha256=hashlib.sha256(file).hexdigest(),
                size_bytes=len(file),
            )
            for index, (seed, file) in enumerate(zip(seeds, files, strict=True))
        ],
        parameters=images_pb2.ResolvedParameters(
            width=64,
            height=64,
            num_images=len(files),
            steps=4,
            guidance_scale=3.5,
            max_sequence_length=32,
            seeds=seeds,
            output_format=images_pb2.OUTPUT_FORMAT_PNG,
            size_policy=images_pb2.SIZE_POLICY_EXACT,
            priority=images_pb2.PRIORITY_NORMAL,
        ),
        warnings=[
            images_pb2.Warning(
                code=images_pb2.WARNING_CODE_GUIDANCE_IGNORED, field="guidance_scale", message="[it] was ignored"
            )
        ],
        timings=images_pb2.Timings(queue_seconds=0.25, denoise_seconds=0.5, total_seconds=1.0),
        model="tiny",
        revision="random-0",
        group="tiny-a",
        epoch=7,
    )


def answer(files: Sequence[bytes], steps: int = 2) -> Script:
    """Return a script that answers with `files` as images."""

    async def script(request: images_pb2.GenerateRequest) -> AsyncIterator[images_pb2.GenerateEvent]:
        yield accepted(request)
        for step in range(1, steps + 1):
            yield progress(step, steps)
        for index, file in enumerate(files):
            for chunk in chunks(index, file):
                yield chunk
        yield images_pb2.GenerateEvent(done=closing(request, files))

    return script


def events(*messages: images_pb2.GenerateEvent) -> Script:
    """Return a script that sends `messages` and ends with OK."""

    async def script(request: images_pb2.GenerateRequest) -> AsyncIterator[images_pb2.GenerateEvent]:
        for message in messages:
            yield message

    return script


def fail(error: Exception, times: int = 1_000, before: Sequence[images_pb2.GenerateEvent] = ()) -> Script:
    """Return a script that sends `before`, then fails with `error`, the first `times` calls; later ones succeed."""
    calls = 0

    async def script(request: images_pb2.GenerateRequest) -> AsyncIterator[images_pb2.GenerateEvent]:
        nonlocal calls
        calls += 1
        for event in before:
            yield event
        if calls <= times:
            raise error
        async for event in answer([b"an image"])(request):
            yield event

    return script


def hang(*before: images_pb2.GenerateEvent) -> Script:
    """Return a script that sends `before` and then nothing more, until the call is over."""

    async def script(request: images_pb2.GenerateRequest) -> AsyncIterator[images_pb2.GenerateEvent]:
        for event in before:
            yield event
        await asyncio.Event().wait()

    return script


def model(name: str = "tiny") -> images_pb2.Model:
    integers = images_pb2.IntegerLimits(minimum=1, maximum=50)
    return images_pb2.Model(
        name=name,
        revision="random-0",
        family="flux2",
        buckets=[
            images_pb2.Bucket(width=64, height=64, batch_sizes=[1, 2, 4], warm=True, measured_seconds=0.5),
            images_pb2.Bucket(width=96, height=64, batch_sizes=[1]),
        ],
        limits=images_pb2.Limits(
            steps=integers,
            guidance_scale=images_pb2.NumberLimits(minimum=0, maximum=20),
            guidance_used=True,
            num_images=images_pb2.IntegerLimits(minimum=1, maximum=4),
            max_sequence_length=images_pb2.IntegerLimits(minimum=32, maximum=64, choices=[32, 64]),
            max_prompt_bytes=16384,
            max_pixels=36864,
        ),
        defaults=images_pb2.Defaults(
            width=64,
            height=64,
            num_images=1,
            steps=4,
            guidance_scale=3.5,
            max_sequence_length=32,
            output_format=images_pb2.OUTPUT_FORMAT_PNG,
            quality=90,
        ),
        ready_groups=2,
    )
