"""A leader on a thread, and what its callers get."""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from PIL import Image

from pixelpod.server.errors import RequestError
from pixelpod.v1 import group_pb2, images_pb2
from tests.events import events_of
from tests.workers.models import accept, make_request
from workers.families import Family
from workers.leader import Leader
from workers.metrics import GroupMetrics
from workers.model_file import Bucket
from workers.queue import RequestQueue
from workers.streamed_request import StreamedRequest

SEQUENCE_LENGTH = 64
PROMPT = "城の上の月 🌙\nlook up"


@dataclass
class Led:
    """A leader that runs on a thread of its own until its queue is closed."""

    leader: Leader
    queue: RequestQueue
    metrics: GroupMetrics
    bucket: Bucket

    def put(self, seconds: float = 60.0, **changes: Any) -> StreamedRequest:
        message = make_request(
            **{"model": "tiny-sd3", "prompt": PROMPT, "steps": 2, "max_sequence_length": SEQUENCE_LENGTH} | changes
        )
        request = accept(message, self.bucket, seconds)
        self.queue.put(request)
        return request

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"pixelpod_group_{name}", labels) or 0


@dataclass
class Answer:
    """What a caller got."""

    files: list[bytes] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    done: images_pb2.GenerateResponse = field(default_factory=images_pb2.GenerateResponse)


async def answer_to(request: StreamedRequest) -> Answer:
    answer = Answer()
    for event in events_of([message async for message in request.messages()]):
        match event.WhichOneof("event"):
            case "progress":
                answer.steps.append(event.progress.step)
            case "image_chunk":
                assert event.image_chunk.index == len(answer.files)
                answer.files.append(event.image_chunk.data)
            case "done":
                answer.done = event.done
    return answer


async def steps_done(request: StreamedRequest, steps: int) -> images_pb2.Progress:
    """Wait until the caller hears that so many steps are done."""
    messages = request.messages()
    while (told := group_pb2.ExecuteEvents.FromString(await anext(messages)).progress).step < steps:
        pass
    return told


async def failure_of(request: StreamedRequest) -> RequestError:
    with pytest.raises(RequestError) as failure:
        await answer_to(request)
    return failure.value


def open_image(file: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(file))
    image.load()
    return image


@asynccontextmanager
async def counted_steps(
    family: Family, monkeypatch: pytest.MonkeyPatch, least_seconds: float = 0.0
) -> AsyncIterator[list[int]]:
    """Take down denoising steps, and have each take so long."""
    steps: list[int] = []
    step = family.step

    def count(denoising: Any) -> None:
        steps.append(denoising.step)
        step(denoising)
        time.sleep(least_seconds)

    with monkeypatch.context() as patch:
        patch.setattr(family, "step", count)
        yield steps
