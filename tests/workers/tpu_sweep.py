"""Warms a model up on device "tpu" and then asks for all that a request can vary, as a process of its own.

python -m tests.workers.tpu_sweep EXECUTION MODEL_FILE
    prints last, as JSON, what warm-up compiled, how many graphs side by side, the number of batches after it, and what
    those compiled
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pixelpod.v1 import group_pb2
from tests.workers.models import make_queue
from workers.batch import BatchRunner
from workers.compile_reports import Report, total
from workers.compiles import CompileTracker
from workers.control import ControlChannel
from workers.devices import device_named
from workers.estimates import Estimates
from workers.families import load_family
from workers.leader import lead_batch
from workers.model_file import Execution, ModelFile, Placement, load_model_file
from workers.status import StatusBoard
from workers.warmup import warm_up

torch.set_num_threads(1)

STEPS = (1, 2, 7, 50)
GUIDANCE_SCALES = (0.0, 1.0, 3.5, 20.0)
PROMPT_TOKENS = (1, 3, 60, 77, 78, 130, 300, 600)
TIMEOUT_SECONDS = 600.0


def variations(model: ModelFile) -> Iterator[group_pb2.RunBatch]:
    """Yield batches of every bucket, batch size, prompt length and guidance, with all else drawn at random.

    50 steps come once for each batch size: they take long.
    """
    draw = random.Random(0)
    for bucket, length in itertools.product(model.buckets, model.limits.max_sequence_lengths):
        for batch_size, guidance_scale in itertools.product(bucket.batch_sizes, GUIDANCE_SCALES):
            prompts = [_prompt(draw) for _ in range(draw.randint(1, batch_size))]
            if draw.random() < 0.3:
                prompts = [prompts[0]] * len(prompts)  # equal inputs are another program to some compilers
            yield group_pb2.RunBatch(
                width=bucket.width,
                height=bucket.height,
                batch_size=batch_size,
                steps=STEPS[-1] if guidance_scale == GUIDANCE_SCALES[-1] else draw.choice(STEPS[:-1]),
                guidance_scale=guidance_scale,
                max_sequence_length=length,
                slots=[
                    group_pb2.Slot(prompt=prompt, negative_prompt=_prompt(draw), seed=draw.randrange(2**64))
                    for prompt in prompts
                ],
            )
        for tokens, steps in itertools.zip_longest(PROMPT_TOKENS, STEPS[:-1], fillvalue=1):
            slot = group_pb2.Slot(prompt="fox " * tokens, seed=draw.randrange(2**64))
            yield group_pb2.RunBatch(
                width=bucket.width,
                height=bucket.height,
                batch_size=bucket.batch_sizes[-1],
                steps=steps,
                guidance_scale=model.defaults.guidance_scale,
                max_sequence_length=length,
                slots=[slot],
            )


def _prompt(draw: random.Random) -> str:
    words = ("a", "lighthouse", "你好", "🎨", "\n", "storm")
    return " ".join(draw.choice(words) for _ in range(draw.choice(PROMPT_TOKENS)))


def _watch_submissions() -> list[int]:
    """Return a list that grows by the number of graphs waited for, each time that some are."""
    from workers.devices import tpu_compile

    sizes: list[int] = []
    wait = tpu_compile.resolve_compilations

    def watch(graphs: list[Any]) -> int:
        sizes.append(len(graphs))
        return wait(graphs)

    tpu_compile.resolve_compilations = watch
    return sizes


def main(execution: Execution, model_file: Path) -> None:
    device = device_named("tpu")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group(device.process_group_backend, store=store, rank=0, world_size=1)
    channel = ControlChannel(TIMEOUT_SECONDS)
    changes = {"execution": execution, "placement": Placement.SINGLE}
    model = load_model_file(model_file).model_copy(update=changes)
    compiles = CompileTracker(device.programs)
    runner = BatchRunner(load_family(model, device, mesh=None), device, compiles, decodes=True, run_ahead_steps=2)
    status = StatusBoard("group", model, ranks=1, epoch=1, queue=make_queue())
    submissions = _watch_submissions()
    started = time.monotonic()
    warm_up(model, channel, runner, status, Estimates())
    warmed = compiles.by_component()
    warm_up_seconds = time.monotonic() - started
    after: list[tuple[str, Report]] = []
    batches = 0
    for batch in variations(model):

        def note(reports: list[Report], batch: group_pb2.RunBatch = batch) -> None:
            if total(reports[0]).count:
                after.append((f"{batch}", reports[0]))

        lead_batch(channel, runner, batch, on_reports=note)
        batches += 1
    dist.destroy_process_group()
    told = {
        "submitted": max(submissions, default=0),
        "warm_up": {component: asdict(each) for component, each in warmed.items()},
        "warm_up_seconds": round(warm_up_seconds, 1),
        "sweep_seconds": round(time.monotonic() - started - warm_up_seconds, 1),
        "batches": batches,
        "after": [[batch, {name: asdict(each) for name, each in report.items()}] for batch, report in after],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(Execution(sys.argv[1]), Path(sys.argv[2]))
