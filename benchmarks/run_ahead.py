"""What bounding the host's run-ahead costs: seconds of the denoise loop against no bound and a sync at each step.

python -m benchmarks.run_ahead [--device cpu|tpu|cuda] [--family flux|flux2|sd3] [--steps N] [--rounds N]

Rounds take turns between the bounds, so that a drift of the machine's speed meets all of them. Prints the median of
each and its ratio to no bound.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pixelpod.v1 import group_pb2
from workers.devices import Device, device_named
from workers.model_file import Execution, FamilyName, Placement, load_model_file

BOUNDS = {"no bound": 10**9, "2 steps (default)": 2, "1 step": 1, "sync at each step": 0}
SEQUENCE_LENGTH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="tpu", choices=["cpu", "tpu", "cuda"])
    parser.add_argument("--family", default="flux2", choices=[str(name) for name in FamilyName])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    device = device_named(arguments.device)
    os.environ |= device.prepare_environment(1)
    with tempfile.TemporaryDirectory() as folder:
        seconds = _measure(device, FamilyName(arguments.family), arguments.steps, arguments.rounds, Path(folder))
    baseline = statistics.median(seconds["no bound"])
    print(f"{arguments.family} on {arguments.device}, {arguments.steps} steps, medians of {arguments.rounds}")
    for bound, measured in seconds.items():
        median = statistics.median(measured)
        print(f"{bound:20} {median * 1000:8.1f} ms   {median / baseline:5.2f} x no bound")


def _measure(device: Device, name: FamilyName, steps: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    from workers.families import load_family
    from workers.tiny_checkpoints import write_tiny_checkpoint

    model = load_model_file(write_tiny_checkpoint(name, folder))
    family = load_family(
        model.model_copy(update={"placement": Placement.SINGLE, "execution": Execution.COMPILED}), device, None
    )
    batch = group_pb2.RunBatch(
        width=64,
        height=64,
        batch_size=1,
        steps=steps,
        guidance_scale=4.0,
        max_sequence_length=SEQUENCE_LENGTH,
        slots=[group_pb2.Slot(prompt="a red fox", seed=7)],
    )
    seconds: dict[str, list[float]] = {bound: [] for bound in BOUNDS}
    _denoise(family, device, batch, 0)  # compiles
    for _ in range(rounds):
        for bound, limit in BOUNDS.items():
            seconds[bound].append(_denoise(family, device, batch, limit))
    return seconds


def _denoise(family: Any, device: Device, batch: group_pb2.RunBatch, limit: int) -> float:
    """Return the seconds of one denoise loop."""
    from workers.run_ahead import RunAhead

    conditioning = family.encode("a red fox", SEQUENCE_LENGTH)
    denoising = family.start(batch, [conditioning], [conditioning])
    device.synchronize()
    run_ahead, started = RunAhead(device, limit), time.monotonic()
    for step in range(1, batch.steps + 1):
        family.step(denoising)
        (run_ahead.step_dispatched if step < batch.steps else run_ahead.last_step_dispatched)()
    return time.monotonic() - started


if __name__ == "__main__":
    main()
