"""Model files and requests for tests that need no weights."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from pixelpod.v1 import group_pb2, images_pb2
from workers.batching import BatchKey
from workers.estimates import Estimates
from workers.model_file import Bucket, ModelFile
from workers.queue import RequestQueue
from workers.servicer import Kind
from workers.streamed_request import StreamedRequest


def make_model(**changes: Any) -> ModelFile:
    """Return a model of two buckets and two prompt lengths, with changed keys."""
    return ModelFile.model_validate(
        {
            "name": "small",
            "revision": "r1",
            "family": "sd3",
            "path": "nowhere",
            "buckets": [
                {"width": 64, "height": 64, "batch_sizes": [1, 2, 4]},
                {"width": 128, "height": 64, "batch_sizes": [2]},
            ],
            "limits": {
                "steps": {"min": 1, "max": 50},
                "guidance_scale": {"min": 0.0, "max": 10.0},
                "num_images": {"min": 1, "max": 8},
                "max_sequence_lengths": [77, 256],
                "max_prompt_bytes": 100,
            },
            "defaults": {"width": 64, "height": 64, "steps": 10, "guidance_scale": 4.0, "max_sequence_length": 77},
        }
        | changes
    )


def make_request(prompt: str = "a fox", model: str = "small", **changes: Any) -> group_pb2.ExecuteRequest:
    """Return a valid request for one image of `make_model`, with changed parameters."""
    parameters = {
        "width": 64,
        "height": 64,
        "steps": 10,
        "guidance_scale": 4.0,
        "max_sequence_length": 77,
        "seeds": [3],
        "output_format": images_pb2.OUTPUT_FORMAT_PNG,
    } | changes
    parameters.setdefault("num_images", len(parameters["seeds"]))
    resolved = images_pb2.ResolvedParameters(**parameters)
    return group_pb2.ExecuteRequest(request_id="r-1", model=model, prompt=prompt, parameters=resolved)


def accept(
    message: group_pb2.ExecuteRequest | None = None,
    bucket: Bucket | None = None,
    seconds: float = 60.0,
    predicted_seconds: float = 2.0,
) -> StreamedRequest:
    """Return a streamed request as the endpoint accepts it, from within its loop."""
    return accept_as(StreamedRequest, message, bucket, seconds, predicted_seconds)


def accept_as(
    kind: type[Kind],
    message: group_pb2.ExecuteRequest | None = None,
    bucket: Bucket | None = None,
    seconds: float = 60.0,
    predicted_seconds: float = 2.0,
) -> Kind:
    """Return a request of this kind as the endpoint accepts it, from within its loop."""
    message = message or make_request()
    parameters = message.parameters
    bucket = bucket or make_model().bucket(parameters.width, parameters.height)
    assert bucket is not None
    deadline, loop = time.monotonic() + seconds, asyncio.get_running_loop()
    return kind(message, BatchKey.of(message, bucket), deadline, predicted_seconds, loop)


def make_queue(queue_limit: int = 8, in_flight_limit: int = 32, window_seconds: float = 0.0) -> RequestQueue:
    """Return a queue that knows nothing of how long batches take."""
    return RequestQueue(Estimates(), queue_limit, in_flight_limit, window_seconds)
