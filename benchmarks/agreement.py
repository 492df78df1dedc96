"""What the agreement of ranks after each step costs: rank 0 hears from all, decides and tells all, over gloo.

python -m benchmarks.agreement [--ranks N] [--rounds N]

No model: to compare with the time of a step, which benchmarks.cancel prints. Prints quantiles of one agreement.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5000)
    arguments = parser.parse_args()
    os.environ |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    from torch import distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    spawn = multiprocessing.get_context("spawn")
    results: Any = spawn.SimpleQueue()
    world = [
        spawn.Process(target=_agree, args=(rank, arguments.ranks, store.port, arguments.rounds, results))
        for rank in range(arguments.ranks)
    ]
    for process in world:
        process.start()
    milliseconds = sorted(seconds * 1000 for seconds in results.get())
    for process in world:
        process.join()
    print(f"{arguments.ranks} ranks, {arguments.rounds} agreements")
    print(f"median {statistics.median(milliseconds):.3f} ms, p99 {milliseconds[int(0.99 * len(milliseconds))]:.3f} ms")


def _agree(rank: int, ranks: int, port: int, rounds: int, results: Any) -> None:
    from torch import distributed as dist

    from workers.boundary import SUCCEEDED, FollowerBoundary, LeaderBoundary
    from workers.control import ControlChannel

    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    channel = ControlChannel(timeout_seconds=60)
    boundary = FollowerBoundary(channel) if rank else LeaderBoundary(channel, wanted=lambda: True)
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        boundary.agree(SUCCEEDED)
        seconds.append(time.perf_counter() - started)
    if rank == 0:
        results.put(seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
