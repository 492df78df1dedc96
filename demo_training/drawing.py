"""Drawing scenes: pixels from formulas, smooth at the edges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demo_training.scenes import PALETTE, SHAPES, Scene

MARGIN = 0.035
"""Least distance from an object to the image's edge, as a part of its side."""
GAP = 0.055
"""Distance between the boxes around neighbouring objects, as a part of the image's side."""
ANCHORS = (0.22, 0.5, 0.78)
"""Where the objects of a cell are centred, across and down, unless they would leave the image."""
JITTER = 0.015
"""Largest random shift from there, as a part of the image's side."""

_ARRANGEMENTS: dict[int, tuple[tuple[float, float], ...]] = {
    1: ((0.0, 0.0),),
    2: ((-0.5, 0.0), (0.5, 0.0)),
    3: ((-0.5, -1 / 3), (0.5, -1 / 3), (0.0, 2 / 3)),
}
"""Count to the offsets (across, down) of its objects from their common centre, in units of diameter plus gap.

At the bottom of the image they are upside down, so that the centre lies lower.
"""


def draw(scenes: Sequence[Scene], side: int, generator: np.random.Generator) -> np.ndarray:
    """Draw square images, each with a random shift of its objects.

    Args:
        scenes: What to draw.
        side: Of the images, in pixels.
        generator: Of the shifts.

    Returns:
        (scenes, side, side, 3) uint8.
    """
    coverage = draw_coverage(scenes, side, generator)
    colours = np.array([PALETTE[scene.colour] for scene in scenes], np.float32)[:, None, None]
    backgrounds = np.array([PALETTE[scene.background] for scene in scenes], np.float32)[:, None, None]
    pixels = backgrounds + coverage[..., None] * (colours - backgrounds)
    rounded: np.ndarray = (pixels + 0.5).astype(np.uint8)
    return rounded


def draw_coverage(scenes: Sequence[Scene], side: int, generator: np.random.Generator) -> np.ndarray:
    """Draw how much of each pixel the objects cover, (scenes, side, side) from 0 to 1; arguments as for `draw`."""
    centres = place(scenes, generator) * side
    shapes = np.array([SHAPES.index(scene.shape) for scene in scenes])
    radii = np.array([scene.diameter for scene in scenes]) * side / 2
    coverage = np.zeros((len(scenes), side, side), np.float32)
    for slot in range(centres.shape[1]):
        used = np.flatnonzero(np.isfinite(centres[:, slot, 0]))
        covered = cover(shapes[used], centres[used, slot], radii[used], side)
        coverage[used] = np.maximum(coverage[used], covered)
    return coverage


def place(scenes: Sequence[Scene], generator: np.random.Generator) -> np.ndarray:
    """Return the centres of the objects, (scenes, 3, 2) as parts of the side: across, down; NaN for no object."""
    centres = np.full((len(scenes), 3, 2), np.nan, np.float32)
    for index, scene in enumerate(scenes):
        offsets = np.array(_ARRANGEMENTS[scene.count]) * (scene.diameter + GAP)
        row, column = scene.position
        if row == len(ANCHORS) - 1:
            offsets = -offsets
        middle = np.array([ANCHORS[column], ANCHORS[row]]) + generator.uniform(-JITTER, JITTER, 2)
        reach = MARGIN + scene.diameter / 2
        middle = np.clip(middle, reach - offsets.min(axis=0), 1 - reach - offsets.max(axis=0))
        centres[index, : scene.count] = middle + offsets
    return centres


def cover(shapes: np.ndarray, centres: np.ndarray, radii: np.ndarray, side: int) -> np.ndarray:
    """Return how much of each pixel an object covers, (objects, side, side) from 0 to 1.

    Args:
        shapes: (objects,) indices in SHAPES.
        centres: (objects, 2) across and down, in pixels.
        radii: (objects,) in pixels.
        side: Of the images, in pixels.
    """
    grid = np.arange(side, dtype=np.float32) + 0.5
    across = grid[None, None, :] - centres[:, 0, None, None].astype(np.float32)
    down = grid[None, :, None] - centres[:, 1, None, None].astype(np.float32)
    covered = np.empty((len(shapes), side, side), np.float32)
    for shape, name in enumerate(SHAPES):
        used = np.flatnonzero(shapes == shape)
        if len(used):
            radius = radii[used, None, None].astype(np.float32)
            covered[used] = np.clip(0.5 - _distance(name, across[used], down[used], radius), 0, 1)
    return covered


def _distance(shape: str, x: np.ndarray, y: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Return the distance from a shape's edge in pixels, below 0 inside (near enough for smooth edges)."""
    distance: np.ndarray
    if shape == "circle":
        distance = np.hypot(x, y) - radius
    elif shape == "square":
        distance = np.maximum(abs(x), abs(y)) - radius
    elif shape == "triangle":
        distance = np.maximum(y - 0.8 * radius, 0.874 * abs(x) - 0.486 * (y + radius))
    elif shape == "cross":
        arm = 0.34 * radius
        upright = np.maximum(abs(x) - arm, abs(y) - radius)
        distance = np.minimum(np.maximum(abs(x) - radius, abs(y) - arm), upright)
    else:  # ring
        distance = abs(np.hypot(x, y) - 0.72 * radius) - 0.28 * radius
    return distance
