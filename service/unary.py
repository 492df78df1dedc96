"""Events put together into the answer of a unary call."""

from __future__ import annotations

from pixelpod.server.answer import check_size, encode_answer
from pixelpod.server.events import Events, decode_chunk
from pixelpod.v1 import images_pb2


async def collect(events: Events, limit_bytes: int) -> bytes:
    """Return done's message, encoded, with the images' bytes put in.

    Holds at most `limit_bytes` of images, however many come.

    Raises:
        AnswerTooLarge: if the message has more than `limit_bytes` bytes.
    """
    response = images_pb2.GenerateResponse()
    files: dict[int, list[memoryview]] = {}
    image_bytes = 0
    async for event in events:
        if isinstance(event, memoryview):
            chunk = decode_chunk(event)
            image_bytes += len(chunk.data)
            if image_bytes <= limit_bytes:
                files.setdefault(chunk.index, []).append(chunk.data)
        elif event.HasField("done"):
            response = event.done
    check_size(image_bytes, limit_bytes)
    return encode_answer(response, files, limit_bytes)
