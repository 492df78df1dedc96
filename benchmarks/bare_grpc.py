"""The baselines of the overhead benchmark: a bare grpc.aio server that answers with one image, and a bare relay to it.

python -m benchmarks.bare_grpc [--image-bytes N | --relay ADDRESS]
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

import grpc

from pixelpod.server.memory import keep_freed_memory
from pixelpod.v1 import images_pb2, images_pb2_grpc

LARGEST = [("grpc.max_receive_message_length", 16 * 1024 * 1024)]


class Bare(images_pb2_grpc.ImageGenerationServicer):
    def __init__(self, image_bytes: int) -> None:
        self._answer = images_pb2.GenerateResponse(images=[images_pb2.Image(data=os.urandom(image_bytes))])

    async def Generate(self, request: images_pb2.GenerateRequest, context: Any) -> images_pb2.GenerateResponse:  # noqa: N802
        return self._answer


def relay(address: str) -> grpc.GenericRpcHandler:
    """Return a handler that passes every call on as it is, the least that a second hop can do."""
    keep_freed_memory()  # as ours; without it a relay takes half as long again
    service, method = "pixelpod.v1.ImageGeneration", "Generate"
    upstream: Any = grpc.aio.insecure_channel(address, LARGEST).unary_unary(f"/{service}/{method}")

    async def pass_on(request: bytes, context: Any) -> bytes:
        answer: bytes = await upstream(request)
        return answer

    return grpc.method_handlers_generic_handler(service, {method: grpc.unary_unary_rpc_method_handler(pass_on)})


async def serve(arguments: argparse.Namespace) -> None:
    server = grpc.aio.server(options=LARGEST)
    if arguments.relay:
        server.add_generic_rpc_handlers((relay(arguments.relay),))
    else:
        images_pb2_grpc.add_ImageGenerationServicer_to_server(Bare(arguments.image_bytes), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image-bytes", type=int, default=768 * 1024)
    parser.add_argument("--relay", help="address of another one, to pass every call on to")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
