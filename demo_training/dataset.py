"""The painter's training data, drawn as it is needed: tokens of images, and prompts that ask for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from diffusers import AutoencoderKLFlux2, Flux2Pipeline
from transformers import PreTrainedTokenizerFast

from demo_training.latents import CELL, PATCH, draw_latents
from demo_training.prompts import draw_wish, word
from demo_training.scenes import draw_scene
from demo_training.tokenizer import tokenize

BATCH_NORM_EPSILON = 1e-4
"""AutoencoderKLFlux2's default."""
_STATISTICS_IMAGES = 2000


@dataclass(frozen=True)
class Batch:
    """What one training step sees."""

    tokens: torch.Tensor
    """(batch, tokens, channels): images, normalised."""
    input_ids: torch.Tensor
    """(batch, MAX_SEQUENCE_LENGTH): prompts."""
    attention_mask: torch.Tensor
    """(batch, MAX_SEQUENCE_LENGTH): 1 for words, 0 for padding."""
    rows: int
    """Of tokens in an image, and columns as well."""


@dataclass(frozen=True)
class Statistics:
    """By which the pipeline normalises tokens; the VAE's batch norm keeps them."""

    mean: torch.Tensor
    """(channels,)."""
    variance: torch.Tensor
    """(channels,)."""

    @property
    def deviation(self) -> torch.Tensor:
        """(channels,), as the pipeline computes it."""
        return torch.sqrt(self.variance + BATCH_NORM_EPSILON)

    @classmethod
    def measure(cls) -> Statistics:
        """Measure images of 64 pixels, always the same."""
        generator = np.random.default_rng(0)
        scenes = [draw_scene(generator) for _ in range(_STATISTICS_IMAGES)]
        patches = _patches(torch.from_numpy(draw_latents(scenes, 64, generator)[0]))
        return cls(patches.mean(dim=(0, 1, 2)), patches.var(dim=(0, 1, 2)))

    def store(self, network: AutoencoderKLFlux2) -> None:
        """Write the numbers into the VAE, where the pipeline finds them."""
        network.bn.running_mean.copy_(self.mean)
        network.bn.running_var.copy_(self.variance)

    def normalise(self, latents: torch.Tensor) -> torch.Tensor:
        """Return (images, tokens, channels) of latents, (images, LATENT_CHANNELS, rows, columns)."""
        return ((_patches(latents) - self.mean) / self.deviation).flatten(1, 2)

    def restore(self, tokens: torch.Tensor) -> torch.Tensor:
        """Undo `normalise`."""
        rows = round(tokens.shape[1] ** 0.5)
        patches = (tokens * self.deviation + self.mean).mT.reshape(len(tokens), -1, rows, rows)
        latents: torch.Tensor = Flux2Pipeline._unpatchify_latents(patches)
        return latents


def draw_batch(
    size: int, side: int, statistics: Statistics, tokenizer: PreTrainedTokenizerFast, generator: np.random.Generator
) -> Batch:
    """Draw images of `side` pixels with their prompts."""
    scenes, wishes = zip(*(draw_wish(generator) for _ in range(size)), strict=True)
    encoded = tokenize(tokenizer, [word(wish, generator) for wish in wishes])
    return Batch(
        tokens=statistics.normalise(torch.from_numpy(draw_latents(scenes, side, generator)[0])),
        input_ids=torch.tensor(encoded["input_ids"]),
        attention_mask=torch.tensor(encoded["attention_mask"]),
        rows=side // (CELL * PATCH),
    )


def _patches(latents: torch.Tensor) -> torch.Tensor:
    """Return (images, rows, columns, channels) of tokens."""
    patches: torch.Tensor = Flux2Pipeline._patchify_latents(latents)
    return patches.permute(0, 2, 3, 1)
