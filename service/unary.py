"""The answer of the unary call: one message with all images inside, as long as it fits."""

from __future__ import annotations

from pixelpod.server.errors import AnswerTooLarge
from pixelpod.server.events import Events, decode_chunk
from pixelpod.server.wire import Part, field
from pixelpod.v1 import images_pb2

REASON_TOO_LARGE = "UNARY_RESPONSE_TOO_LARGE"


async def collect(events: Events, limit_bytes: int) -> bytes:
    """Return done's message, encoded, with the images' bytes put in: they are copied once.

    Holds at most `limit_bytes` of images, however many come.

    Raises:
        AnswerTooLarge: if the message has more than `limit_bytes` bytes.
    """
    response = images_pb2.GenerateResponse()
    images: dict[int, list[memoryview]] = {}
    image_bytes = 0
    async for event in events:
        if isinstance(event, memoryview):
            chunk = decode_chunk(event)
            image_bytes += len(chunk.data)
            if image_bytes <= limit_bytes:
                images.setdefault(chunk.index, []).append(chunk.data)
        elif event.HasField("done"):
            response.CopyFrom(event.done)  # other callers may read the event too
    parts = _with_images(response, images) if image_bytes <= limit_bytes else []
    size_bytes = max(image_bytes, sum(map(len, parts)))
    if size_bytes > limit_bytes:
        raise AnswerTooLarge(
            f"the answer has {size_bytes} bytes, over the limit of {limit_bytes} for Generate: call GenerateStream, "
            "which has no such limit, or ask for fewer images, a smaller size, or JPEG or WEBP",
            reason=REASON_TOO_LARGE,
        )
    return b"".join(parts)


def _with_images(response: images_pb2.GenerateResponse, images: dict[int, list[memoryview]]) -> list[Part]:
    """Return the parts of the encoded message: all but the images first, then each image with its data."""
    heads = [(image.index, image.SerializeToString()) for image in response.images]
    del response.images[:]
    parts: list[Part] = [response.SerializeToString()]
    for index, head in heads:
        data = field(images_pb2.Image.DATA_FIELD_NUMBER, images[index])
        parts += field(images_pb2.GenerateResponse.IMAGES_FIELD_NUMBER, [head, *data])
    return parts
