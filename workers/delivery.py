"""From pixels to the caller: images are encoded on a pool while the next batch computes, and handed over in order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np

from pixelpod.server.errors import ComputationFailed
from pixelpod.v1 import images_pb2
from workers.batch import SlotNotes, StageSeconds
from workers.images import EncodedImage, encode_image
from workers.metrics import GroupMetrics
from workers.request import AcceptedRequest

logger = logging.getLogger(__name__)


Encode: TypeAlias = Callable[
    [np.ndarray[Any, Any], images_pb2.OutputFormat.ValueType, int, Mapping[str, str]], EncodedImage
]
"""Makes an image file, as `encode_image` does."""


class Deliveries:
    """Begins the deliveries of a group.

    Args:
        identity: What every answer tells of its origin: model, revision, group and epoch.
        metrics: Where stages are counted.
        threads: For image files.
        encode: Makes them.
    """

    def __init__(
        self, identity: images_pb2.GenerateResponse, metrics: GroupMetrics, threads: int, encode: Encode = encode_image
    ) -> None:
        self._identity = identity
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="image-encoding")
        self._encode = encode

    def begin(self, request: AcceptedRequest) -> Delivery:
        """Return the delivery of a request whose first batch begins now."""
        message = request.message
        answer = images_pb2.GenerateResponse(
            request_id=message.request_id,
            parameters=message.parameters,
            warnings=message.warnings,
            timings=message.timings,
        )
        answer.MergeFrom(self._identity)
        queue_seconds = time.monotonic() - request.arrived
        answer.timings.queue_seconds += queue_seconds
        self._metrics.queue_seconds.observe(queue_seconds)
        return Delivery(request, answer, self._pool, self._metrics, self._encode)


class Delivery:
    """Turns one request's pixels into image files and its closing message.

    Args:
        request: Whose images these are.
        answer: The closing message, filled but for images, warnings and the times from now on.
        pool: Where images are encoded.
        metrics: Where stages are counted.
        encode: Makes image files.
    """

    def __init__(
        self,
        request: AcceptedRequest,
        answer: images_pb2.GenerateResponse,
        pool: ThreadPoolExecutor,
        metrics: GroupMetrics,
        encode: Encode,
    ) -> None:
        self._request = request
        self._answer = answer
        self._pool = pool
        self._metrics = metrics
        self._encode = encode
        self._lock = threading.Lock()
        self._encoded: dict[int, EncodedImage] = {}
        """Images that wait for those before them."""

    def add_seconds(self, seconds: StageSeconds) -> None:
        """Count what a batch with images of the request took."""
        with self._lock:
            _add_seconds(self._answer.timings, seconds)

    def add(self, index: int, pixels: np.ndarray[Any, Any], notes: SlotNotes) -> None:
        """Take the request's image of this number, (height, width, 3) uint8. Returns at once."""
        with self._lock:
            _add_warnings(self._answer, notes)
        self._pool.submit(self._make_file, index, pixels).add_done_callback(self._fail_on_error)

    def _make_file(self, index: int, pixels: np.ndarray[Any, Any]) -> None:
        if not self._request.wanted:
            return
        started = time.monotonic()
        parameters = self._answer.parameters
        image = self._encode(pixels, parameters.output_format, parameters.quality, self._text(index))
        seconds = time.monotonic() - started
        self._metrics.stage_took("image_encode", seconds)
        with self._lock:
            self._answer.timings.image_encode_seconds += seconds
            self._encoded[index] = image
            self._hand_over()

    def _hand_over(self) -> None:
        """Give the caller all images whose turn it is, and after the last one the closing message."""
        answer, seeds = self._answer, self._answer.parameters.seeds
        while (index := len(answer.images)) in self._encoded:
            image = self._encoded.pop(index)
            self._request.post_image(index, image.data)
            answer.images.add(
                media_type=image.media_type,
                width=image.width,
                height=image.height,
                seed=seeds[index],
                index=index,
                sha256=image.sha256,
                size_bytes=len(image.data),
            )
        if len(answer.images) == len(seeds):
            answer.timings.total_seconds += time.monotonic() - self._request.arrived
            self._request.end(answer)

    def _text(self, index: int) -> dict[str, str]:
        """Return what an image file tells of itself. Only its caller sees it."""
        parameters = self._answer.parameters
        text = {
            "prompt": self._request.message.prompt,
            "seed": str(parameters.seeds[index]),
            "steps": str(parameters.steps),
            "guidance_scale": str(parameters.guidance_scale),
            "max_sequence_length": str(parameters.max_sequence_length),
            "size": f"{parameters.width}x{parameters.height}",
            "model": self._answer.model,
            "revision": self._answer.revision,
        }
        if parameters.HasField("negative_prompt"):
            text["negative_prompt"] = parameters.negative_prompt
        return text

    def _fail_on_error(self, encoding: Future[None]) -> None:
        error = encoding.exception()
        if error is not None:
            request_id = self._request.message.request_id
            logger.error("an image could not be encoded", exc_info=error, extra={"request_id": request_id})
            self._request.end(
                ComputationFailed(
                    f"an image could not be encoded; the group's log explains it under request {request_id}",
                    reason="IMAGE_ENCODING_FAILED",
                )
            )


def _add_seconds(timings: images_pb2.Timings, seconds: StageSeconds) -> None:
    timings.encode_seconds += seconds.encode
    timings.denoise_seconds += seconds.denoise
    timings.decode_seconds += seconds.decode
    timings.compile_seconds += seconds.compile


def _add_warnings(answer: images_pb2.GenerateResponse, notes: SlotNotes) -> None:
    """Tell what the encoders did not read, once however many images share the prompt."""
    for field, sentences in (("prompt", notes.prompt), ("negative_prompt", notes.negative_prompt)):
        for sentence in sentences:
            warning = images_pb2.Warning(
                code=images_pb2.WARNING_CODE_PROMPT_TRUNCATED, field=field, message=f"{field} was cut: {sentence}"
            )
            if warning not in answer.warnings:
                answer.warnings.append(warning)
