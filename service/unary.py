"""The answer of the unary call: one message with all images inside, as long as it fits."""

from __future__ import annotations

from pixelpod.server.errors import AnswerTooLarge
from pixelpod.server.events import Events
from pixelpod.v1 import images_pb2

REASON_TOO_LARGE = "UNARY_RESPONSE_TOO_LARGE"


async def collect(events: Events, limit_bytes: int) -> images_pb2.GenerateResponse:
    """Return done's message with the images' bytes put in.

    Holds at most `limit_bytes` of images, however many come.

    Raises:
        AnswerTooLarge: if the message has more than `limit_bytes` bytes.
    """
    response = images_pb2.GenerateResponse()
    images: dict[int, list[bytes]] = {}
    image_bytes = 0
    async for event in events:
        if isinstance(event, bytes):
            chunk = images_pb2.GenerateEvent.FromString(event).image_chunk
            image_bytes += len(chunk.data)
            if image_bytes <= limit_bytes:
                images.setdefault(chunk.index, []).append(chunk.data)
        elif event.HasField("done"):
            response.CopyFrom(event.done)  # other callers may read the event too
    if image_bytes <= limit_bytes:
        for image in response.images:
            image.data = b"".join(images[image.index])
    size_bytes = max(image_bytes, response.ByteSize())
    if size_bytes > limit_bytes:
        raise AnswerTooLarge(
            f"the answer has {size_bytes} bytes, over the limit of {limit_bytes} for Generate: call GenerateStream, "
            "which has no such limit, or ask for fewer images, a smaller size, or JPEG or WEBP",
            reason=REASON_TOO_LARGE,
        )
    return response
