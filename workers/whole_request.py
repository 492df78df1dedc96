"""An accepted Execute call: its caller gets one answer, with all images inside."""

from __future__ import annotations

from pixelpod.server.answer import encode_answer
from pixelpod.server.errors import RequestError
from workers.request import AcceptedRequest

LARGEST_MESSAGE_BYTES = 2**31 - 1
"""Of protobuf: https://protobuf.dev/programming-guides/proto-limits/#total"""


class WholeRequest(AcceptedRequest):
    """A request whose caller waits for the end."""

    def post_progress(self, step: int, steps: int) -> None:
        """Tell nobody: the caller is not woken for steps."""

    def post_image(self, index: int, data: bytes) -> None:
        """Keep an image file for the answer."""
        self._images.append((index, data))

    async def answer(self) -> bytes:
        """Return the encoded GenerateResponse.

        Raises:
            AnswerTooLarge: if it has more bytes than the caller takes.
            RequestError: if the request ends without its images, also because its deadline passed.
        """
        with self._in_time():
            await self._news.wait()
        ending = self._ending
        assert ending is not None
        if isinstance(ending, RequestError):
            raise ending
        files = {index: [data] for index, data in self._images}
        return encode_answer(ending, files, self.message.answer_limit_bytes or LARGEST_MESSAGE_BYTES)
