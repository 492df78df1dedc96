"""The latents, by formula: what a cell of 8x8 pixels shows, in 16 numbers.

They are prescribed, not found by training, which makes both trainings short: the VAE learns to turn them into pixels
(and pixels into them), the painter learns to draw them. Colours apply to the whole image, and shapes do not depend on
them:

- 3: the background's red, green and blue, from -1 to 1
- 3: the objects' red, green and blue, from -1 to 1
- 10: how much of the cell is covered, as the lowest frequencies of its cosine transform
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from demo_training.drawing import draw_coverage
from demo_training.scenes import PALETTE, Scene

CELL = 8
"""Pixels across a latent."""
PATCH = 2
"""Latents across a token of the transformer."""
HIGHEST_FREQUENCY = 3
"""Across and down together."""
FREQUENCIES = tuple(
    (down, across) for down in range(HIGHEST_FREQUENCY + 1) for across in range(HIGHEST_FREQUENCY + 1 - down)
)
LATENT_CHANNELS = 6 + len(FREQUENCIES)


def draw_latents(scenes: Sequence[Scene], side: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw images, each with a random shift of its objects, as latents and as pixels.

    Args:
        scenes: What to draw.
        side: Of the images, in pixels.
        generator: Of the shifts.

    Returns:
        Latents, (scenes, LATENT_CHANNELS, rows, columns) float32, and pixels, (scenes, side, side, 3) from -1 to 1.
    """
    coverage = draw_coverage(scenes, side, generator)
    colours, backgrounds = _unit([scene.colour for scene in scenes]), _unit([scene.background for scene in scenes])
    cells = side // CELL
    blocks = coverage.reshape(len(scenes), cells, CELL, cells, CELL).transpose(0, 1, 3, 2, 4)
    frequencies = (blocks.reshape(-1, CELL * CELL) @ _BASIS).reshape(len(scenes), cells, cells, -1)
    flat = np.broadcast_to(np.concatenate([backgrounds, colours], 1)[:, None, None], (len(scenes), cells, cells, 6))
    latents = np.concatenate([flat, frequencies], axis=-1).transpose(0, 3, 1, 2)
    pixels = backgrounds[:, None, None] + coverage[..., None] * (colours - backgrounds)[:, None, None]
    return np.ascontiguousarray(latents, np.float32), pixels


def sketch(latents: np.ndarray) -> np.ndarray:
    """Return the pixels that latents stand for, without a VAE and less sharp: (images, side, side, 3) uint8.

    Args:
        latents: (images, LATENT_CHANNELS, rows, columns).
    """
    images, _, rows, columns = latents.shape
    blocks = latents[:, 6:].transpose(0, 2, 3, 1) @ _BASIS.T
    coverage = blocks.reshape(images, rows, columns, CELL, CELL).transpose(0, 1, 3, 2, 4)
    coverage = coverage.reshape(images, rows * CELL, columns * CELL, 1).clip(0, 1)
    backgrounds, colours = np.split(latents[:, :6].mean(axis=(2, 3)), 2, axis=1)
    pixels = backgrounds[:, None, None] + coverage * (colours - backgrounds)[:, None, None]
    rounded: np.ndarray = ((pixels.clip(-1, 1) + 1) * 127.5 + 0.5).astype(np.uint8)
    return rounded


def _basis() -> np.ndarray:
    """Return the orthonormal cosines, (pixels of a cell, frequencies)."""
    place = np.arange(CELL) + 0.5
    waves = [
        np.cos(np.pi * frequency * place / CELL) * math.sqrt((1 if frequency == 0 else 2) / CELL)
        for frequency in range(HIGHEST_FREQUENCY + 1)
    ]
    return np.stack([np.outer(waves[down], waves[across]).ravel() for down, across in FREQUENCIES], 1).astype(
        np.float32
    )


def _unit(names: Sequence[str]) -> np.ndarray:
    """Return palette colours, (names, 3) from -1 to 1."""
    colours: np.ndarray = np.array([PALETTE[name] for name in names], np.float32) / 127.5 - 1
    return colours


_BASIS = _basis()
