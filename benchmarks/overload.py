"""Twice as many requests as can be computed, each with a deadline: what becomes of them, here and with plain FIFO.

python -m benchmarks.overload [--seconds S] [--deadline S] [--groups N]

Groups are timed ones (benchmarks.timed_group): batches of up to four images take 0.1 s. Goodput is the answers that
came within their deadlines and within the time, as a share of what can be computed in it.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import ExitStack

import psutil

from benchmarks.load import Outcomes, closed_loop, health_seconds, open_loop, quantile
from benchmarks.processes import announced, free_address, frontend, samples

CAPACITY_CALLERS = 16
"""For each group: enough for full batches always."""
CAPACITY_SECONDS = 8.0
LAG_BOUND = "0.05"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--deadline", type=float, default=2.0, help="seconds")
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--factor", type=float, default=2.0, help="offered load over capacity")
    arguments = parser.parse_args()
    capacity = _pixelpod(arguments)
    _plain_fifo(arguments, capacity)


def _pixelpod(arguments: argparse.Namespace) -> float:
    with ExitStack() as stack:
        metrics = [free_address() for _ in range(arguments.groups)]
        groups = [stack.enter_context(announced("benchmarks.timed_group", "--metrics", each)) for each in metrics]
        address, frontend_metrics, process = stack.enter_context(frontend(groups))
        capacity = asyncio.run(closed_loop(address, CAPACITY_CALLERS * arguments.groups, CAPACITY_SECONDS))
        before, rss_before = _computed(metrics), psutil.Process(process.pid).memory_info().rss
        outcomes, health = asyncio.run(_overload(address, arguments, capacity))
        rss_after = psutil.Process(process.pid).memory_info().rss
        recovery = asyncio.run(_recovery(address, arguments))
        told = samples(frontend_metrics)
        computed = _computed(metrics) - before
    _report("pixelpod", arguments, capacity, outcomes)
    print(f"  computed in vain    {max(0.0, computed - outcomes.ok - recovery[1]):7.0f}")
    print(f"  rejection, median   {quantile(outcomes.seconds.get('RESOURCE_EXHAUSTED', []), 0.5) * 1000:7.1f} ms")
    print(f"  health, p99         {quantile(health, 0.99) * 1000:7.1f} ms")
    print(f"  memory, growth      {(rss_after - rss_before) / 1e6:7.1f} MB of {rss_before / 1e6:.0f}")
    late = (
        told["pixelpod_frontend_loop_lag_seconds_count"]
        - told[f"pixelpod_frontend_loop_lag_seconds_bucket|{LAG_BOUND}"]
    )
    print(f"  loop lag over 50 ms {late:7.0f} of {told['pixelpod_frontend_loop_lag_seconds_count']:.0f} looks")
    print(f"  a second after, answer in {recovery[0] * 1000:.0f} ms")
    return capacity


async def _overload(address: str, arguments: argparse.Namespace, capacity: float) -> tuple[Outcomes, list[float]]:
    ended = False
    health = asyncio.create_task(health_seconds(address, 0.1, lambda: ended))
    outcomes = await open_loop(address, arguments.factor * capacity, arguments.seconds, arguments.deadline)
    ended = True
    return outcomes, await health


async def _recovery(address: str, arguments: argparse.Namespace) -> tuple[float, int]:
    """Return the worst latency of a few requests from a second after the load fell, and how many they were."""
    await asyncio.sleep(1.0)
    outcomes = await open_loop(address, 5.0, 2.0, arguments.deadline)
    return max(outcomes.seconds["OK"]), outcomes.ok


def _plain_fifo(arguments: argparse.Namespace, capacity: float) -> None:
    with announced("benchmarks.plain_fifo") as address:
        outcomes = asyncio.run(open_loop(address, arguments.factor * capacity, arguments.seconds, arguments.deadline))
    _report("plain FIFO", arguments, capacity, outcomes)


def _report(name: str, arguments: argparse.Namespace, capacity: float, outcomes: Outcomes) -> None:
    possible, answered = capacity * arguments.seconds, outcomes.seconds.get("OK", [])
    offered = f"{arguments.factor:g} x {capacity:.1f}/s for {arguments.seconds:g} s"
    print(f"{name}: {offered}, deadlines {arguments.deadline:g} s")
    in_time = sum(at < outcomes.began + arguments.seconds for at in outcomes.answered)
    print(f"  goodput             {in_time / possible:7.1%}   {in_time} of {possible:.0f}")
    print(f"  codes               {dict(outcomes.codes)}")
    print(f"  OK, p50 and p99     {quantile(answered, 0.5):7.2f} {quantile(answered, 0.99):7.2f} s")


def _computed(metrics: list[str]) -> float:
    """Return the images that all groups have computed."""
    return sum(samples(each)["pixelpod_group_batch_size_sum"] for each in metrics)


if __name__ == "__main__":
    main()
