"""Scenes: what an image shows, in six attributes, and which combinations of them are kept out of training."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

PALETTE: dict[str, tuple[int, int, int]] = {
    "red": (214, 32, 40),
    "orange": (250, 136, 16),
    "yellow": (250, 224, 44),
    "green": (32, 150, 56),
    "cyan": (64, 208, 224),
    "blue": (32, 64, 208),
    "purple": (124, 40, 164),
    "pink": (250, 140, 190),
    "white": (255, 255, 255),
    "black": (0, 0, 0),
}
"""Colours of objects and backgrounds: name to red, green, blue from 0 to 255."""

SHAPES = ("circle", "square", "triangle", "cross", "ring")
COUNTS = (1, 2, 3)
SIZES = ("small", "medium", "large")
ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "centre", "right")
POSITIONS = tuple((row, column) for row in range(3) for column in range(3))
"""Cells of a 3x3 grid over the image: (row from the top, column from the left)."""
CENTRE = (1, 1)

DIAMETERS: dict[int, tuple[float, float, float]] = {
    1: (0.19, 0.29, 0.42),
    2: (0.17, 0.21, 0.25),
    3: (0.17, 0.21, 0.25),
}
"""Count to the diameters of small, medium and large objects, as parts of the image's side.

Several objects share a cell of the grid, so they are smaller.
"""

_HELD_OUT_OF = 10
"""One in so many combinations of shape, count, colour and background is held out."""


@dataclass(frozen=True)
class Scene:
    """One kind of object, once or several times, on a plain background."""

    shape: str
    """Of SHAPES."""
    count: int
    """Of COUNTS."""
    colour: str
    """Of PALETTE."""
    background: str
    """Of PALETTE; never the colour."""
    size: str
    """Of SIZES."""
    position: tuple[int, int]
    """Of POSITIONS: the cell that holds the centre of the objects together."""

    @property
    def diameter(self) -> float:
        """Of each object, as a part of the image's side."""
        return DIAMETERS[self.count][SIZES.index(self.size)]

    @property
    def held_out(self) -> bool:
        """Whether training never shows this combination of shape, count, colour and background, in any size."""
        combination = f"{self.shape}/{self.count}/{self.colour}/{self.background}"
        return int.from_bytes(hashlib.sha256(combination.encode()).digest()[:4]) % _HELD_OUT_OF == 0


def draw_scene(generator: np.random.Generator, *, held_out: bool = False) -> Scene:
    """Draw attributes evenly, from the held-out combinations or from the others."""
    names = tuple(PALETTE)
    while True:
        colour, background = generator.choice(len(names), size=2, replace=False)
        scene = Scene(
            shape=SHAPES[generator.integers(len(SHAPES))],
            count=COUNTS[generator.integers(len(COUNTS))],
            colour=names[colour],
            background=names[background],
            size=SIZES[generator.integers(len(SIZES))],
            position=POSITIONS[generator.integers(len(POSITIONS))],
        )
        if scene.held_out == held_out:
            return scene


def default_background(colour: str) -> str:
    """Return the background of prompts that name none: white, or black behind white objects."""
    return "black" if colour == "white" else "white"
