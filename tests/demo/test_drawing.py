"""Drawings: where things are, and how they look."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from demo_training.drawing import cover, draw, place
from demo_training.scenes import COUNTS, PALETTE, POSITIONS, SHAPES, SIZES, Scene


def test_shape_type_and_seed() -> None:
    scenes = [Scene("circle", 1, "red", "blue", "small", (0, 0)), Scene("ring", 3, "white", "black", "large", (2, 1))]
    images = draw(scenes, 96, np.random.default_rng(0))
    assert images.shape == (2, 96, 96, 3)
    assert images.dtype == np.uint8
    assert np.array_equal(images, draw(scenes, 96, np.random.default_rng(0)))
    assert not np.array_equal(images, draw(scenes, 96, np.random.default_rng(1)))


def test_flat_colours() -> None:
    image = draw([Scene("square", 1, "yellow", "purple", "large", (1, 1))], 64, np.random.default_rng(0))[0]
    assert tuple(image[32, 32]) == PALETTE["yellow"]
    assert tuple(image[0, 0]) == PALETTE["purple"]


@pytest.mark.parametrize(("count", "size", "position"), list(product(COUNTS, SIZES, POSITIONS)))
def test_objects_lie_in_their_cell_and_inside_the_image(count: int, size: str, position: tuple[int, int]) -> None:
    scene = Scene("square", count, "red", "blue", size, position)
    centres = place([scene] * 50, np.random.default_rng(0))[:, :count]
    assert centres.min() - scene.diameter / 2 > 0.03
    assert centres.max() + scene.diameter / 2 < 0.97
    middles = centres.mean(axis=1)
    assert (np.floor(middles * 3) == [position[1], position[0]]).all()


@pytest.mark.parametrize(
    ("shape", "share"),
    [("circle", 0.785), ("square", 1.0), ("triangle", 0.45), ("cross", 0.564), ("ring", 0.633)],
)
def test_area_of_shapes(shape: str, share: float) -> None:
    """As a part of the square around them."""
    covered = cover(np.array([SHAPES.index(shape)]), np.array([[64.0, 64.0]]), np.array([50.0]), 128)
    assert covered.sum() / 100**2 == pytest.approx(share, abs=0.01)
