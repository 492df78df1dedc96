"""The baseline of the overhead benchmark: a bare grpc.aio server that answers at once with one image.

python -m benchmarks.bare_grpc [--image-bytes N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

import grpc

from benchmarks.processes import announce
from pixelpod.v1 import images_pb2, images_pb2_grpc


class Bare(images_pb2_grpc.ImageGenerationServicer):
    def __init__(self, image_bytes: int) -> None:
        self._answer = images_pb2.GenerateResponse(images=[images_pb2.Image(data=os.urandom(image_bytes))])

    async def Generate(self, request: images_pb2.GenerateRequest, context: Any) -> images_pb2.GenerateResponse:  # noqa: N802
        return self._answer


async def serve(image_bytes: int) -> None:
    server = grpc.aio.server()
    images_pb2_grpc.add_ImageGenerationServicer_to_server(Bare(image_bytes), server)
    await announce(server)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image-bytes", type=int, default=768 * 1024)
    asyncio.run(serve(parser.parse_args().image_bytes))


if __name__ == "__main__":
    main()
