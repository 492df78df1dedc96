"""The answer of a unary call: one message with all images inside, as long as it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pixelpod.server.errors import AnswerTooLarge
from pixelpod.server.wire import Part, field, read_fields
from pixelpod.v1 import images_pb2

REASON_TOO_LARGE = "UNARY_RESPONSE_TOO_LARGE"


def encode_answer(
    response: images_pb2.GenerateResponse, files: Mapping[int, Sequence[Part]], limit_bytes: int
) -> bytes:
    """Return `response`, encoded, with the files' bytes put in: they are copied once.

    Args:
        response: Its images lack their data.
        files: Pieces of image files, by the images' indexes.
        limit_bytes: Of the encoded message.

    Raises:
        AnswerTooLarge: if the message has more than `limit_bytes` bytes.
    """
    heads = images_pb2.GenerateResponse()
    heads.CopyFrom(response)  # others may read it too
    del heads.images[:]
    parts: list[Part] = [heads.SerializeToString()]
    for image in response.images:
        data = field(images_pb2.Image.DATA_FIELD_NUMBER, files[image.index])
        parts += field(images_pb2.GenerateResponse.IMAGES_FIELD_NUMBER, [image.SerializeToString(), *data])
    check_size(sum(map(len, parts)), limit_bytes)
    return b"".join(parts)


def timings_of(answer: bytes) -> images_pb2.Timings:
    """Return the timings of an encoded answer, without a look at its images: they come last."""
    for each in read_fields(memoryview(answer)):
        if each.number == images_pb2.GenerateResponse.TIMINGS_FIELD_NUMBER and isinstance(each.value, memoryview):
            return images_pb2.Timings.FromString(bytes(each.value))
    return images_pb2.Timings()


def check_size(size_bytes: int, limit_bytes: int) -> None:
    """Check that an answer of this size fits.

    Raises:
        AnswerTooLarge: if it does not.
    """
    if size_bytes > limit_bytes:
        raise AnswerTooLarge(
            f"the answer has {size_bytes} bytes, over the limit of {limit_bytes} for Generate: call GenerateStream, "
            "which has no such limit, or ask for fewer images, a smaller size, or JPEG or WEBP",
            reason=REASON_TOO_LARGE,
        )
