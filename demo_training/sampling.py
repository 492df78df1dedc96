"""Images for the judge, from a Flux2Pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from diffusers import Flux2Pipeline

from demo_training.judge import judge
from demo_training.networks import MAX_SEQUENCE_LENGTH, TEXT_OUT_LAYERS
from demo_training.prompts import Wish

DEFAULT_STEPS = 8
_BATCH = 25


def paint_tokens(
    pipeline: Flux2Pipeline, prompts: Sequence[str], side: int, steps: int, first_seed: int
) -> torch.Tensor:
    """Return one image for each prompt before the VAE, (prompts, tokens, channels), normalised.

    Args:
        pipeline: A demo model.
        prompts: What to draw.
        side: Of the images, in pixels.
        steps: Denoising steps.
        first_seed: Of the first image; each further image has the next one.
    """
    images = []
    for first in range(0, len(prompts), _BATCH):
        part = list(prompts[first : first + _BATCH])
        images += pipeline(
            prompt=part,
            height=side,
            width=side,
            num_inference_steps=steps,
            generator=[torch.Generator("cpu").manual_seed(first_seed + first + index) for index in range(len(part))],
            max_sequence_length=MAX_SEQUENCE_LENGTH,
            text_encoder_out_layers=TEXT_OUT_LAYERS,
            output_type="latent",
        ).images
    return torch.stack(images)


def score(images: np.ndarray, wishes: Sequence[Wish]) -> dict[str, float]:
    """Return for each attribute the part of the images that have it, of those whose prompts name it.

    `all` is the part of the images that have everything asked for.
    """
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for image, wish in zip(images, wishes, strict=True):
        verdicts = judge(image, wish)
        verdicts["all"] = all(verdicts.values())
        right.update({attribute: int(verdict) for attribute, verdict in verdicts.items()})
        asked.update(verdicts.keys())
    return {attribute: right[attribute] / number for attribute, number in asked.items()}
