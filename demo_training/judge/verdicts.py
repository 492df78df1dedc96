"""What an image shows, found from its pixels alone, and whether that is what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from demo_training.drawing import cover
from demo_training.judge.components import components
from demo_training.prompts import Wish
from demo_training.scenes import DIAMETERS, PALETTE, SHAPES, SIZES

_NAMES = tuple(PALETTE)
_COLOURS = np.array(list(PALETTE.values()), np.float32)

COLOUR_TOLERANCE = 75.0
"""Largest distance from a palette colour that still has its name, in units of 1/255 (Euclidean)."""
CONTRAST = 40.0
"""Distance from the background that makes a pixel part of an object, before the object's own colour is known."""
LEAST_AREA = 0.0025
"""Smaller components are specks that the eye would not count, as a part of the image's area."""
LEAST_OVERLAP = 0.75
"""Intersection over union with the best fitting shape, below which a component has no shape."""

_FRAME = 2
"""Empty pixels around a component's box while shapes are compared with it."""
_ADJUSTMENT = 0.05
"""How far a drawing is moved and its radius changed, as a part of the longest side; at least half a pixel."""


@dataclass(frozen=True)
class Sight:
    """What the judge sees. None, or an empty tuple, where it recognises nothing."""

    background: str | None
    """Of PALETTE."""
    colours: tuple[str | None, ...] = ()
    """Of each object."""
    shapes: tuple[str | None, ...] = ()
    """Of each object."""
    size: str | None = None
    """Of SIZES, for the number of objects seen."""
    position: tuple[int, int] | None = None
    """The cell of the 3x3 grid that holds the centre of mass of all objects: (row, column)."""

    @property
    def count(self) -> int:
        """Objects seen."""
        return len(self.shapes)


def look(pixels: np.ndarray) -> Sight:
    """Find what an image shows.

    Args:
        pixels: (rows, columns, 3) uint8.
    """
    image = pixels.astype(np.float32)
    background = _background(image)
    background_name = _name(background)
    contrast = np.linalg.norm(image - background, axis=-1)
    if (contrast > CONTRAST).mean() < LEAST_AREA:
        return Sight(background_name)
    mask = contrast > max(CONTRAST, 0.5 * float(np.quantile(contrast[contrast > CONTRAST], 0.75)))
    objects = [part for part in components(mask) if part.mean() >= LEAST_AREA]
    if not objects:
        return Sight(background_name)
    diameter = float(np.mean([max(_box(part)[2:]) for part in objects])) / max(mask.shape)
    diameters = DIAMETERS[min(len(objects), max(DIAMETERS))]
    return Sight(
        background=background_name,
        colours=tuple(_name(_inner_colour(image, part, contrast)) for part in objects),
        shapes=tuple(_shape(part) for part in objects),
        size=SIZES[int(np.argmin([abs(diameter - known) for known in diameters]))],
        position=_cell(np.logical_or.reduce(objects)),
    )


def judge(pixels: np.ndarray, wish: Wish) -> dict[str, bool]:
    """Return for each attribute that the wish names whether the image has it.

    Args:
        pixels: (rows, columns, 3) uint8.
        wish: What was asked for.
    """
    return compare(look(pixels), wish)


def compare(sight: Sight, wish: Wish) -> dict[str, bool]:
    """Return for each attribute that the wish names whether it was seen; colours and shapes on every object."""
    verdicts = {
        "colour": _all_are(sight.colours, wish.colour),
        "background": sight.background == wish.background,
        "shape": _all_are(sight.shapes, wish.shape),
        "count": sight.count == wish.count,
        "position": sight.position == wish.position,
        "size": sight.size == wish.size,
    }
    return {attribute: verdict for attribute, verdict in verdicts.items() if getattr(wish, attribute) is not None}


def _all_are(seen: Sequence[str | None], wanted: str | None) -> bool:
    return len(seen) > 0 and all(name == wanted for name in seen)


def _background(image: np.ndarray) -> np.ndarray:
    """Return the median of the pixels nearest to the commonest palette colour."""
    distances = np.linalg.norm(image[:, :, None] - _COLOURS, axis=-1)
    nearest = distances.argmin(axis=-1)
    commonest = np.bincount(nearest.ravel(), minlength=len(_COLOURS)).argmax()
    median: np.ndarray = np.median(image[nearest == commonest], axis=0)
    return median


def _name(colour: np.ndarray) -> str | None:
    distances = np.linalg.norm(_COLOURS - colour, axis=-1)
    nearest = int(distances.argmin())
    return _NAMES[nearest] if distances[nearest] <= COLOUR_TOLERANCE else None


def _inner_colour(image: np.ndarray, part: np.ndarray, contrast: np.ndarray) -> np.ndarray:
    """Return the median colour of the half of a component that differs most from the background: not its edges."""
    inner = part & (contrast >= np.median(contrast[part]))
    median: np.ndarray = np.median(image[inner], axis=0)
    return median


def _shape(part: np.ndarray) -> str | None:
    """Return the shape whose drawing overlaps a component best, in its box or moved and scaled a little from there.

    A corner that is a pixel too round moves the box, and the eye still knows the shape.
    """
    left, top, width, height = _box(part)
    diameter = max(width, height)
    side = diameter + 2 * _FRAME
    window = np.zeros((side, side), bool)
    window[_FRAME : _FRAME + height, _FRAME : _FRAME + width] = part[top : top + height, left : left + width]
    middle = _FRAME + np.array([width, height]) / 2
    adjustments = np.array(list(product((-1, 0, 1), repeat=3))) * max(0.5, _ADJUSTMENT * diameter)
    best, best_overlap = None, LEAST_OVERLAP
    for shape, name in enumerate(SHAPES):
        radii = diameter / 2 + adjustments[:, 0]
        centres = middle + adjustments[:, 1:]
        if name == "triangle":
            centres[:, 1] += 0.1 * radii  # its box is not centred
        templates = cover(np.full(len(radii), shape), centres, radii, side) > 0.5
        overlaps = (templates & window).sum(axis=(1, 2)) / (templates | window).sum(axis=(1, 2))
        if overlaps.max() >= best_overlap:
            best, best_overlap = name, overlaps.max()
    return best


def _box(part: np.ndarray) -> tuple[int, int, int, int]:
    """Return left, top, width and height in pixels."""
    rows, columns = np.flatnonzero(part.any(axis=1)), np.flatnonzero(part.any(axis=0))
    return int(columns[0]), int(rows[0]), int(np.ptp(columns)) + 1, int(np.ptp(rows)) + 1


def _cell(mask: np.ndarray) -> tuple[int, int]:
    row, column = (np.argwhere(mask).mean(axis=0) + 0.5) * 3 / mask.shape
    return int(row), int(column)
