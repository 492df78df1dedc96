"""How soon after a cancel the device is free: a caller leaves at a random moment, and the next one's wait is measured.

python -m benchmarks.cancel [--ranks N] [--device cpu|tpu|cuda] [--cancels N]

Serves the tiny FLUX.2 at 96x64. Prints quantiles of the wait, as ratios to the time of one denoising step.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.groups import request, serving
from pixelpod.v1 import group_pb2_grpc, images_pb2
from workers.model_file import FamilyName, load_model_file
from workers.tiny_checkpoints import write_tiny_checkpoint

STEPS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=["cpu", "tpu", "cuda"])
    parser.add_argument("--cancels", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = write_tiny_checkpoint(FamilyName.FLUX2, Path(folder))
        name = load_model_file(file).name
        with serving(file, arguments.ranks, arguments.device) as stub:
            whole = _done(stub, name, steps=STEPS)
            step_seconds = whole.timings.denoise_seconds / STEPS
            waits = sorted(_wait_after_cancel(stub, name, seed, step_seconds) for seed in range(arguments.cancels))
    print(f"{arguments.ranks} ranks on {arguments.device}, {arguments.cancels} cancels")
    print(f"a step  {step_seconds * 1000:7.1f} ms")
    quantiles = {"median": statistics.median(waits), "p95": waits[int(0.95 * len(waits))], "worst": waits[-1]}
    for label, wait in quantiles.items():
        print(f"{label:7} {wait * 1000:7.1f} ms   {wait / step_seconds:5.2f} x one step")


def _wait_after_cancel(stub: group_pb2_grpc.WorkerGroupStub, model: str, seed: int, step_seconds: float) -> float:
    """Return how long the request after a cancelled one waited for its first batch, in seconds."""
    call = stub.ExecuteStream(request(model, steps=STEPS, width=96, seeds=[seed]), timeout=600)
    draw = random.Random(seed)
    until = draw.randrange(1, STEPS - 5)
    next(events for events in call if events.progress.step >= until)
    time.sleep(draw.random() * step_seconds)
    call.cancel()
    return _done(stub, model, steps=1).timings.queue_seconds


def _done(stub: group_pb2_grpc.WorkerGroupStub, model: str, steps: int) -> images_pb2.GenerateResponse:
    events = list(stub.ExecuteStream(request(model, steps=steps, width=96), timeout=600))
    return events[-1].done


if __name__ == "__main__":
    main()
