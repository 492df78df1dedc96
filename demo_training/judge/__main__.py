"""Judges a checkpoint through the code that serves it: `python -m demo_training.judge --checkpoint FOLDER`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from demo_training.prompts import held_out_prompts
from demo_training.sampling import score
from pixelpod.v1 import group_pb2
from workers.devices import device_named
from workers.families import Family, load_family
from workers.model_file import Placement, load_model_file

TARGETS = {"colour": 0.97, "background": 0.97, "shape": 0.9, "count": 0.85, "position": 0.9}
"""What the demo model has to reach at its default size and steps."""


def main() -> None:
    """Print one row for each size and number of steps."""
    arguments = _parse_arguments()
    model = load_model_file(arguments.checkpoint / "model.yaml")
    model = model.model_copy(update={"dtype": arguments.dtype or model.dtype, "placement": Placement.SINGLE})
    family = load_family(model, device_named("cpu"), mesh=None)
    prompts, wishes = zip(*held_out_prompts(arguments.prompts, arguments.seed), strict=True)
    print(f"{arguments.prompts} held-out prompts, seed {arguments.seed}, {model.dtype}; right of those asked for:")
    columns = [*TARGETS, "size", "all"]
    print(f"{'pixels':>8}{'steps':>7}" + "".join(f"{column:>12}" for column in columns))
    for side in arguments.sides or [model.defaults.width]:
        for steps in arguments.steps or [model.defaults.steps]:
            scores = score(serve(family, prompts, side, steps, arguments.seed), wishes)
            print(f"{side:>8}{steps:>7}" + "".join(f"{scores[column]:>11.1%} " for column in columns), flush=True)


def serve(family: Family, prompts: Sequence[str], side: int, steps: int, first_seed: int) -> np.ndarray:
    """Return one image for each prompt as a group serves it, (prompts, side, side, 3) uint8.

    Args:
        family: A loaded demo model.
        prompts: What to draw.
        side: Of the images, in pixels: a bucket of the model file.
        steps: Denoising steps.
        first_seed: Of the first image; each further image has the next one.
    """
    bucket = family.model.bucket(side, side)
    if bucket is None:
        raise SystemExit(f"the model file has no bucket of {side}x{side} pixels")
    batch_size, defaults = bucket.batch_sizes[-1], family.model.defaults
    images = []
    for first in range(0, len(prompts), batch_size):
        part = prompts[first : first + batch_size]
        conditionings = [family.encode(prompt, defaults.max_sequence_length) for prompt in part]
        batch = group_pb2.RunBatch(
            width=side,
            height=side,
            batch_size=batch_size,
            steps=steps,
            guidance_scale=defaults.guidance_scale,
            max_sequence_length=defaults.max_sequence_length,
            slots=[group_pb2.Slot(prompt=prompt, seed=first_seed + first + i) for i, prompt in enumerate(part)],
        )
        denoising = family.start(batch, conditionings)
        for _ in range(denoising.steps):
            family.step(denoising)
        images.append(family.decode(denoising)[: len(part)])
    return np.concatenate(images)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo_training.judge", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("workers/demo_model"), help="a folder with model.yaml")
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--sides", type=int, nargs="+", help="pixels; by default the model file's")
    parser.add_argument("--steps", type=int, nargs="+", help="denoising steps; by default the model file's")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="by default the model file's")
    parser.add_argument("--seed", type=int, default=2026, help="of prompts and noise; training reports on seed 1")
    return parser.parse_args()


if __name__ == "__main__":
    main()
