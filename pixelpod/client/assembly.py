"""Puts a request's stream of messages together: events for the caller, chunks into whole, proven files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import grpc

from pixelpod.client.errors import ServerError
from pixelpod.client.events import Accepted, Progress
from pixelpod.client.messages import from_message
from pixelpod.client.result import Generation, generation_from
from pixelpod.v1 import images_pb2


class Assembly:
    """The messages of one request, taken in one by one; of several calls where its stream broke and was taken up."""

    def __init__(self) -> None:
        self.began = False
        """Whether anything arrived."""
        self._answer_id = ""
        self._accepted = False
        self._files: list[bytearray] = []
        self._closing: images_pb2.GenerateResponse | None = None

    def take(self, message: images_pb2.GenerateEvent) -> Accepted | Progress | None:
        """Take the next message in, and return the event it is to the caller, if it is one.

        Raises:
            ServerError: if a chunk is out of place.
        """
        self.began = True
        match message.WhichOneof("event"):
            case "accepted":
                return self._take_accepted(message.accepted)
            case "progress":
                return from_message(Progress, message.progress)
            case "image_chunk":
                self._take_chunk(message.image_chunk)
            case "done":
                self._closing = message.done
        # An event that this version does not know (a newer server's) is no error.
        return None

    def resume_point(self) -> images_pb2.ResumePoint | None:
        """Return from where on the answer is lacking; None when no answer that can be taken up began."""
        if not self._answer_id:
            return None
        if not self._files:
            return images_pb2.ResumePoint(answer_id=self._answer_id)
        return images_pb2.ResumePoint(
            answer_id=self._answer_id, index=len(self._files) - 1, offset=len(self._files[-1])
        )

    def generation(self) -> Generation:
        """Return the result, once the call ended with OK.

        Raises:
            ServerError: if the closing message is missing, or an image is not the one it names.
        """
        if self._closing is None:
            raise _broken("the stream ended without its closing message")
        _prove(self._closing.images, self._files)
        return generation_from(self._closing, [bytes(file) for file in self._files])

    def _take_accepted(self, message: images_pb2.Accepted) -> Accepted | None:
        if not message.answer_id or message.answer_id != self._answer_id:
            # Another computation, maybe with another seed: its images must not be mixed with what came before.
            self._answer_id, self._files, self._closing = message.answer_id, [], None
        if self._accepted:
            return None
        self._accepted = True
        return from_message(Accepted, message)

    def _take_chunk(self, chunk: images_pb2.ImageChunk) -> None:
        if chunk.index == len(self._files):
            self._files.append(bytearray())
        if chunk.index != len(self._files) - 1 or chunk.offset != len(self._files[-1]):
            raise _broken(f"a piece of image {chunk.index} at byte {chunk.offset} is out of place")
        self._files[-1] += chunk.data


def _prove(images: Sequence[images_pb2.Image], files: Sequence[bytes | bytearray]) -> None:
    """Raise ServerError unless `files` are the files of `images`, by number, length and digest."""
    if len(images) != len(files):
        raise _broken(f"{len(files)} images arrived, the closing message names {len(images)}")
    for image, file in zip(images, files, strict=True):
        if image.size_bytes != len(file):
            raise _broken(f"image {image.index} has {len(file)} bytes, the closing message says {image.size_bytes}")
        if image.sha256 != hashlib.sha256(file).hexdigest():
            raise _broken(f"image {image.index} does not match its SHA-256")


def _broken(message: str) -> ServerError:
    return ServerError(f"broken answer: {message}", code=grpc.StatusCode.DATA_LOSS, reason="BROKEN_ANSWER")
