"""A bare server with the threads of a group and nothing else of it: one of the floors of the overhead benchmark.

python -m benchmarks.bare_threads [--image-bytes N]

Each call goes the way of a group's requests: from the endpoint's thread to the main thread, which makes batches for the
device, from there to the pool that encodes images, and back.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import uvloop

from benchmarks.processes import announce
from benchmarks.timed_model import BATCH_SIZES
from pixelpod.server.memory import keep_freed_memory
from pixelpod.v1 import images_pb2, images_pb2_grpc

Waiting = asyncio.Future[bytes]


class Threaded(images_pb2_grpc.ImageGenerationServicer):
    """Answers from the endpoint's thread with what the others hand back."""

    def __init__(self, arrived: queue.SimpleQueue[Waiting]) -> None:
        self._arrived = arrived

    async def Generate(self, request: images_pb2.GenerateRequest, context: Any) -> images_pb2.GenerateResponse:  # noqa: N802
        waiting: Waiting = asyncio.get_running_loop().create_future()
        self._arrived.put(waiting)
        return images_pb2.GenerateResponse(images=[images_pb2.Image(data=await waiting)])


async def serve(arrived: queue.SimpleQueue[Waiting]) -> None:
    server = grpc.aio.server()
    images_pb2_grpc.add_ImageGenerationServicer_to_server(Threaded(arrived), server)
    await announce(server)


def lead(arrived: queue.SimpleQueue[Waiting], data: bytes) -> None:
    """Take what is there, up to a full batch, and have the pool answer each."""
    pool = ThreadPoolExecutor(2)

    def answer(waiting: Waiting) -> None:
        waiting.get_loop().call_soon_threadsafe(waiting.set_result, data)

    while True:
        batch = [arrived.get()]
        while len(batch) < BATCH_SIZES[-1] and not arrived.empty():
            batch.append(arrived.get())
        for waiting in batch:
            pool.submit(answer, waiting)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image-bytes", type=int, default=768 * 1024)
    image_bytes = parser.parse_args().image_bytes
    keep_freed_memory()
    arrived: queue.SimpleQueue[Waiting] = queue.SimpleQueue()
    threading.Thread(target=lambda: uvloop.run(serve(arrived)), daemon=True).start()
    lead(arrived, os.urandom(image_bytes))


if __name__ == "__main__":
    main()
