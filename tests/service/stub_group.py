"""A group without an accelerator: serves WorkerGroup with canned images. `python -m tests.service.stub_group` runs one.

It stands in for the computation only: its gRPC server, status stream and event stream are real.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
from collections import defaultdict
from collections.abc import AsyncIterator

import grpc

from pixelpod.server.access import Access, AccessSettings
from pixelpod.server.answer import check_size
from pixelpod.server.callers import current_caller
from pixelpod.server.transport import SERVER_OPTIONS, listen
from pixelpod.v1 import group_pb2, group_pb2_grpc, images_pb2
from service.group_connection import CONTRACT_VERSION

CHUNK_BYTES = 900_000
STATUS_SECONDS = 0.2
EPOCHS = itertools.count(1_700_000_000_000)
"""No two groups have both name and epoch in common."""


def tiny_model(name: str = "tiny", **limits: object) -> images_pb2.Model:
    """A model as a group publishes it: three warm buckets, negative prompts and guidance used."""
    model = images_pb2.Model(
        name=name,
        revision="r1",
        family="sd3",
        buckets=[
            images_pb2.Bucket(width=width, height=height, batch_sizes=[1, 2, 4], warm=True)
            for width, height in ((64, 64), (96, 64), (128, 128))
        ],
        limits=images_pb2.Limits(
            steps=images_pb2.IntegerLimits(minimum=1, maximum=50),
            guidance_scale=images_pb2.NumberLimits(minimum=0, maximum=20),
            guidance_used=True,
            num_images=images_pb2.IntegerLimits(minimum=1, maximum=4),
            max_sequence_length=images_pb2.IntegerLimits(minimum=64, maximum=256, choices=[64, 256]),
            max_prompt_bytes=16384,
            negative_prompt=True,
            max_pixels=128 * 128 * 3,
        ),
        defaults=images_pb2.Defaults(
            width=64,
            height=64,
            num_images=1,
            steps=4,
            guidance_scale=7.0,
            max_sequence_length=64,
            output_format=images_pb2.OUTPUT_FORMAT_PNG,
            quality=90,
        ),
    )
    for limit, value in limits.items():
        setattr(model.limits, limit, value)
    return model


def measured(beside_seconds: float, step_seconds: float, *batch_sizes: int) -> list[group_pb2.BatchSeconds]:
    """What batches of `tiny_model` took: of one image, or of these sizes, all the same."""
    return [
        group_pb2.BatchSeconds(
            width=bucket.width,
            height=bucket.height,
            batch_size=batch_size,
            step_seconds=step_seconds,
            beside_seconds=beside_seconds,
        )
        for bucket in tiny_model().buckets
        for batch_size in batch_sizes or (1,)
    ]


class StubGroup(group_pb2_grpc.WorkerGroupServicer):
    """One group. Tests set what it does through its attributes, and its status through `publish`.

    Args:
        name: Of the group.
        model: What it serves.
        access: Settings of who may call it.
    """

    def __init__(self, name: str = "stub", model: images_pb2.Model | None = None, **access: object) -> None:
        self._access = Access(AccessSettings(**access), limits_apply=False)
        self.status = group_pb2.GroupStatus(
            group=name,
            epoch=next(EPOCHS),
            state=group_pb2.GROUP_STATE_READY,
            model=model or tiny_model(),
            free_slots=8,
            ranks=1,
            contract_version=CONTRACT_VERSION,
        )
        self.address = ""
        self.image = b"image bytes"
        self.error: Exception | None = None
        self.stopping = False
        """Ends calls as gRPC ends those that arrive just as a server stops."""
        self.silent = False
        self.go_on = asyncio.Event()
        self.go_on.set()
        """Cleared: a request stops after its first step until this is set."""
        self.step_seconds = 0.0
        self.running = 0
        """Requests that it has not yet ended."""
        self.watches = 0
        """Status streams ever begun."""
        self.watching = 0
        """Status streams that go on."""
        self.images_go_on = asyncio.Event()
        self.images_go_on.set()
        """Cleared: a request stops after its first image chunk until this is set."""
        self.warnings: list[images_pb2.Warning] = []
        self.executed: list[group_pb2.ExecuteRequest] = []
        self.callers: list[str] = []
        self.timeouts: list[float] = []
        self.stepped = asyncio.Event()
        self.cancelled = asyncio.Event()
        self._changed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self._server = grpc.aio.server(interceptors=self._access.interceptors, options=SERVER_OPTIONS)
        group_pb2_grpc.add_WorkerGroupServicer_to_server(self, self._server)
        self.address = f"{host}:{listen(self._server, f'{host}:{port}', self._access.credentials)}"
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def publish(self, **changes: object) -> None:
        """Change fields of the status and send it to all who watch."""
        for field, value in changes.items():
            if isinstance(value, images_pb2.Model):
                self.status.model.CopyFrom(value)
            elif isinstance(value, list):
                repeated = getattr(self.status, field)
                del repeated[:]
                repeated.extend(value)
            else:
                setattr(self.status, field, value)
        async with self._changed:
            self._changed.notify_all()

    async def WatchStatus(  # noqa: N802 -- gRPC's name
        self, request: group_pb2.WatchStatusRequest, context: object
    ) -> AsyncIterator[group_pb2.GroupStatus]:
        self.watches += 1
        self.watching += 1
        try:
            while True:
                if not self.silent:
                    yield self.status
                async with self._changed:
                    try:
                        async with asyncio.timeout(STATUS_SECONDS):
                            await self._changed.wait()
                    except TimeoutError:
                        continue
        finally:
            self.watching -= 1

    async def Execute(  # noqa: N802 -- gRPC's name
        self, request: group_pb2.ExecuteRequest, context: grpc.aio.ServicerContext
    ) -> images_pb2.GenerateResponse:
        files: defaultdict[int, bytes] = defaultdict(bytes)
        answer = images_pb2.GenerateResponse()
        async for events in self.ExecuteStream(request, context):
            for chunk in events.image_chunk:
                files[chunk.index] += chunk.data
            answer.MergeFrom(events.done)
        for image in answer.images:
            image.data = files[image.index]
        if request.answer_limit_bytes:
            check_size(answer.ByteSize(), request.answer_limit_bytes)
        return answer

    async def ExecuteStream(  # noqa: N802 -- gRPC's name
        self, request: group_pb2.ExecuteRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[group_pb2.ExecuteEvents]:
        self.executed.append(request)
        self.callers.append(current_caller().name)
        self.timeouts.append(context.time_remaining())
        if self.error is not None:
            raise self.error
        if self.stopping:
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        self.running += 1
        try:
            await self.publish(computing=[*self.status.computing, request.request_id])
            steps = request.parameters.steps
            for step in range(1, steps + 1):
                yield group_pb2.ExecuteEvents(progress=images_pb2.Progress(step=step, steps=steps))
                self.stepped.set()
                await self.go_on.wait()
                await asyncio.sleep(self.step_seconds)
            for index in range(request.parameters.num_images):
                for offset in range(0, len(self.image), CHUNK_BYTES):
                    data = self.image[offset : offset + CHUNK_BYTES]
                    chunk = images_pb2.ImageChunk(index=index, offset=offset, data=data)
                    yield group_pb2.ExecuteEvents(image_chunk=[chunk])
                    await self.images_go_on.wait()
            yield group_pb2.ExecuteEvents(done=self._done(request))
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise
        finally:
            self.running -= 1
            self.status.computing.remove(request.request_id)

    def _done(self, request: group_pb2.ExecuteRequest) -> images_pb2.GenerateResponse:
        digest = hashlib.sha256(self.image).hexdigest()
        return images_pb2.GenerateResponse(
            request_id=request.request_id,
            images=[
                images_pb2.Image(
                    media_type="image/png",
                    width=request.parameters.width,
                    height=request.parameters.height,
                    seed=seed,
                    index=index,
                    sha256=digest,
                    size_bytes=len(self.image),
                )
                for index, seed in enumerate(request.parameters.seeds)
            ],
            parameters=request.parameters,
            warnings=[*request.warnings, *self.warnings],
            timings=images_pb2.Timings(
                queue_seconds=request.timings.queue_seconds + 0.5,
                denoise_seconds=0.25,
                total_seconds=request.timings.total_seconds,
            ),
            model=self.status.model.name,
            revision=self.status.model.revision,
            group=self.status.group,
            epoch=self.status.epoch,
        )


async def _serve_forever() -> None:
    """Serve on any free port and print its address; STUB_HOLD=1 stops every request after its first step."""
    group = StubGroup("stub-process")
    if os.environ.get("STUB_HOLD"):
        group.go_on.clear()
    await group.start()
    print(group.address, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve_forever())
