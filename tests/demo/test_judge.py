"""The judge: right on drawings, and not fooled by wrong ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from demo_training.drawing import draw
from demo_training.judge import components, judge, look
from demo_training.prompts import Wish
from demo_training.scenes import PALETTE, Scene, draw_scene

SCENE = Scene("triangle", 2, "green", "white", "medium", (0, 0))
WISH = Wish("triangle", 2, "green", "white", "medium", (0, 0))


def picture(scene: Scene, side: int = 64) -> np.ndarray:
    return draw([scene], side, np.random.default_rng(0))[0]


@pytest.mark.parametrize("side", [64, 96, 128])
def test_right_on_drawings(side: int) -> None:
    generator = np.random.default_rng(side)
    scenes = [draw_scene(generator) for _ in range(150)]
    verdicts = [
        judge(image, Wish(scene.shape, scene.count, scene.colour, scene.background, scene.size, scene.position))
        for scene, image in zip(scenes, draw(scenes, side, generator), strict=True)
    ]
    for attribute in ("colour", "background", "shape", "count", "position"):
        assert np.mean([verdict[attribute] for verdict in verdicts]) == 1.0
    assert np.mean([verdict["size"] for verdict in verdicts]) > 0.95


@pytest.mark.parametrize(
    ("attribute", "other"),
    [
        ("colour", "red"),
        ("background", "black"),
        ("shape", "square"),
        ("count", 3),
        ("size", "large"),
        ("position", (2, 2)),
    ],
)
def test_one_wrong_attribute_is_seen(attribute: str, other: object) -> None:
    verdicts = judge(picture(replace(SCENE, **{attribute: other})), WISH)
    assert not verdicts.pop(attribute)
    verdicts.pop("size", None)  # sizes depend on the count
    assert all(verdicts.values())


def test_only_what_was_asked_for_is_judged() -> None:
    assert judge(picture(SCENE), Wish(shape="triangle", count=None, colour="green")) == {"shape": True, "colour": True}


def test_an_empty_image_shows_no_objects() -> None:
    empty = np.full((64, 64, 3), PALETTE["orange"], np.uint8)
    assert look(empty).background == "orange"
    assert look(empty).count == 0
    assert not judge(empty, WISH)["colour"]


def test_noise_fulfils_nothing() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    verdicts = judge(noise, WISH)
    assert not verdicts["shape"]
    assert not verdicts["count"]


def test_a_blurred_colour_between_two_has_no_name() -> None:
    grey = np.full((64, 64, 3), 128, np.uint8)
    assert look(grey).background is None


def test_a_second_object_of_another_colour_is_wrong() -> None:
    image = picture(SCENE)
    image[44:56, 44:56] = PALETTE["red"]
    verdicts = judge(image, WISH)
    assert not verdicts["colour"]
    assert not verdicts["count"]
    assert not verdicts["shape"]


def test_components_touch_along_edges_only() -> None:
    mask = np.array([[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1]], bool)
    parts = components(mask)
    assert [int(part.sum()) for part in parts] == [3, 3]
    assert components(np.zeros((3, 3), bool)) == []


def test_a_spiral_is_one_component() -> None:
    spiral = np.array([[1, 1, 1, 1, 1], [0, 0, 0, 0, 1], [1, 1, 1, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]], bool)
    assert len(components(spiral)) == 1
