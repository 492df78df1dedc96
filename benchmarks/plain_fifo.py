"""The baseline of the overload benchmark: one unbounded queue, served in order, whoever still waits.

python -m benchmarks.plain_fifo [--step-seconds S]

Batches of up to four requests take as long as those of benchmarks.timed_group.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import grpc

from benchmarks.timed_model import BATCH_SIZES, STEPS
from pixelpod.v1 import images_pb2, images_pb2_grpc


class PlainFifo(images_pb2_grpc.ImageGenerationServicer):
    def __init__(self, batch_seconds: float) -> None:
        self._batch_seconds = batch_seconds
        self._waiting: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
        self.computed = 0

    async def Generate(self, request: images_pb2.GenerateRequest, context: Any) -> images_pb2.GenerateResponse:  # noqa: N802
        done = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(done)
        await asyncio.shield(done)
        image = images_pb2.Image(data=bytes(1000), seed=self.computed)
        return images_pb2.GenerateResponse(images=[image])

    async def compute(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < BATCH_SIZES[-1] and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            await asyncio.sleep(self._batch_seconds)
            self.computed += len(batch)
            for done in batch:
                done.set_result(None)


async def serve(step_seconds: float) -> None:
    fifo = PlainFifo(STEPS * step_seconds)
    server = grpc.aio.server()
    images_pb2_grpc.add_ImageGenerationServicer_to_server(fifo, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await fifo.compute()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-seconds", type=float, default=0.025)
    asyncio.run(serve(parser.parse_args().step_seconds))


if __name__ == "__main__":
    main()
