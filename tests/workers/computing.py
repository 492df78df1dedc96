"""Computes batches with a family as a rank does, and single images with the plain diffusers pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pixelpod.v1 import group_pb2
from workers.devices import device_named
from workers.families import FAMILIES, Denoising, Family, load_family
from workers.model_file import ModelFile, Placement

torch.set_num_threads(1)  # on tiny models threads mostly wait for each other

SEQUENCE_LENGTH = 64
"""One that the tiny models serve."""


@dataclass(frozen=True)
class Picture:
    """What to draw."""

    prompt: str = "a dog is dancing in the rain"
    negative_prompt: str = ""
    seed: int = 0
    width: int = 64
    height: int = 64
    steps: int = 2
    guidance_scale: float = 4.0


def load_single(model: ModelFile, **changes: Any) -> Family:
    """Load `model` on the CPU of this process, unsharded, with `changes` to its file."""
    changed = model.model_copy(update={"placement": Placement.SINGLE, **changes})
    return load_family(changed, device_named("cpu"), mesh=None)


def start(family: Family, pictures: Sequence[Picture], batch_size: int | None = None) -> Denoising:
    """Encode and start a batch of `pictures`, which differ in prompts and seeds only."""
    first = pictures[0]
    batch = group_pb2.RunBatch(
        width=first.width,
        height=first.height,
        batch_size=batch_size or len(pictures),
        steps=first.steps,
        guidance_scale=first.guidance_scale,
        max_sequence_length=SEQUENCE_LENGTH,
        slots=[group_pb2.Slot(prompt=picture.prompt, seed=picture.seed) for picture in pictures],
    )
    positives = [family.encode(picture.prompt, SEQUENCE_LENGTH) for picture in pictures]
    negatives = None
    if family.uses_guidance_pass(first.guidance_scale):
        negatives = [family.encode(picture.negative_prompt, SEQUENCE_LENGTH) for picture in pictures]
    return family.start(batch, positives, negatives)


def denoise(family: Family, denoising: Denoising) -> Denoising:
    """Run all the steps that are left."""
    while denoising.step < denoising.steps:
        family.step(denoising)
    return denoising


def compute(family: Family, pictures: Sequence[Picture], batch_size: int | None = None) -> tuple[torch.Tensor, Any]:
    """Return the final latents and the pixels of a batch of `pictures`."""
    denoising = denoise(family, start(family, pictures, batch_size))
    return denoising.latents, family.decode(denoising)


def load_plain_pipeline(model: ModelFile, dtype: torch.dtype = torch.float32) -> Any:
    """Load the family's diffusers pipeline as anybody would."""
    pipeline = FAMILIES[model.family].pipeline_class.from_pretrained(model.path, dtype=dtype)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def call_plain_pipeline(pipeline: Any, picture: Picture, output_type: str = "pil") -> Any:
    """Return the image of the pipeline's own call: pixels (height, width, 3), or the latents."""
    negative = {"negative_prompt": picture.negative_prompt} if picture.negative_prompt else {}
    images = pipeline(
        prompt=picture.prompt,
        width=picture.width,
        height=picture.height,
        num_inference_steps=picture.steps,
        guidance_scale=picture.guidance_scale,
        generator=torch.Generator("cpu").manual_seed(picture.seed),
        max_sequence_length=SEQUENCE_LENGTH,
        output_type=output_type,
        **negative,
    ).images
    return np.asarray(images[0]) if output_type == "pil" else images
