"""What frontend and group add to an answer of 768 KB whose computation takes no time, against bare grpc.aio.

python -m benchmarks.overhead [--seconds S] [--rounds N]

Ours is two hops, the bare server one. Relays (benchmarks.bare_relay) show what a second hop costs that does nothing at
all: before the bare server, before one that has a group's threads and no more of it, and before our group. Rounds go
through all of them: a busy machine slows all.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack

import grpc
import psutil

from benchmarks.load import quantile
from benchmarks.processes import announced, free_address, frontend, process, wait_serving
from pixelpod.v1 import images_pb2, images_pb2_grpc

IMAGE_BYTES = 768 * 1024
LARGEST = [("grpc.max_receive_message_length", 16 * 1024 * 1024)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        bare = stack.enter_context(announced("benchmarks.bare_grpc", "--image-bytes", str(IMAGE_BYTES)))
        relay = stack.enter_context(announced("benchmarks.bare_relay", "--server", bare))
        threads = stack.enter_context(announced("benchmarks.bare_threads", "--image-bytes", str(IMAGE_BYTES)))
        threads_relay = stack.enter_context(announced("benchmarks.bare_relay", "--server", threads))
        options = ("--step-seconds", "0", "--steps", "1", "--image-bytes", str(IMAGE_BYTES))
        group = stack.enter_context(announced("benchmarks.timed_group", *options))
        group_relay = stack.enter_context(announced("benchmarks.bare_relay", "--group", group))
        ours, _, _ = stack.enter_context(frontend([group]))
        servers = {
            "bare": bare,
            "bare relay": relay,
            "threads relay": threads_relay,
            "group relay": group_relay,
            "pixelpod": ours,
        }
        for callers in (1, 8):
            rounds = [
                {name: asyncio.run(_measure(each, callers, arguments.seconds)) for name, each in servers.items()}
                for _ in range(arguments.rounds)
            ]
            _report(callers, rounds)
    _frontend_alone()


async def _measure(address: str, callers: int, seconds: float) -> list[float]:
    """Return the latencies of what so many callers ask for in this time, each asking again once it is answered."""
    taken: list[float] = []
    request = images_pb2.GenerateRequest(prompt="a red fox")

    async def call(stub: images_pb2_grpc.ImageGenerationStub) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            answer = await stub.Generate(request)
            assert len(answer.images[0].data) == IMAGE_BYTES
            taken.append(time.monotonic() - began)

    async with grpc.aio.insecure_channel(address, LARGEST) as channel:
        stub = images_pb2_grpc.ImageGenerationStub(channel)
        await stub.Generate(request)
        until = time.monotonic() + seconds
        await asyncio.gather(*(call(stub) for _ in range(callers)))
    return taken


def _report(callers: int, rounds: Sequence[dict[str, list[float]]]) -> None:
    """Print medians over rounds: of latencies, and of their ratios to the bare server in the same round."""
    print(f"{callers} callers")
    for name in rounds[0]:
        p50 = [quantile(each[name], 0.5) for each in rounds]
        slower = statistics.median(own / quantile(each["bare"], 0.5) for own, each in zip(p50, rounds, strict=True))
        share = statistics.median(len(each[name]) / len(each["bare"]) for each in rounds)
        print(f"  {name:13} p50 {statistics.median(p50) * 1000:5.1f} ms: {slower:.2f} x; throughput {share:.2f} x")


def _frontend_alone() -> None:
    """Report how soon a frontend listens, and what memory it takes."""
    address = free_address()
    began = time.monotonic()
    with process("pixelpod", "serve", "--group", free_address(), "--listen", address, "--metrics", "none") as child:
        wait_serving(address, serving=False)
        seconds = time.monotonic() - began
        resident = psutil.Process(child.pid).memory_info().rss
    print(f"frontend alone: answers after {seconds:.2f} s, {resident / 1e6:.0f} MB resident")


if __name__ == "__main__":
    main()
