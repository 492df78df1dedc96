"""The prescribed latents: what they keep of a drawing."""

from __future__ import annotations

import numpy as np

from demo_training.drawing import draw
from demo_training.judge import judge
from demo_training.latents import LATENT_CHANNELS, draw_latents, sketch
from demo_training.prompts import Wish
from demo_training.scenes import PALETTE, Scene, draw_scene


def test_shapes_and_pixels() -> None:
    scenes = [Scene("ring", 2, "red", "white", "large", (1, 1))] * 3
    latents, pixels = draw_latents(scenes, 96, np.random.default_rng(4))
    assert latents.shape == (3, LATENT_CHANNELS, 12, 12)
    assert latents.dtype == np.float32
    assert pixels.shape == (3, 96, 96, 3)
    drawn = draw(scenes, 96, np.random.default_rng(4))
    assert abs((pixels + 1) * 127.5 - drawn).max() <= 1


def test_colours_stand_first() -> None:
    latents, _ = draw_latents([Scene("square", 1, "blue", "black", "small", (0, 0))], 64, np.random.default_rng(0))
    assert np.allclose(latents[0, :3], -1)
    assert np.allclose((latents[0, 3:6, 2, 5] + 1) * 127.5, PALETTE["blue"], atol=1e-4)


def test_an_empty_cell_has_no_frequencies() -> None:
    latents, _ = draw_latents([Scene("square", 1, "blue", "black", "small", (0, 0))], 64, np.random.default_rng(0))
    assert not latents[0, 6:, 7, 7].any()
    assert latents[0, 6:].any()


def test_the_judge_knows_most_sketches() -> None:
    generator = np.random.default_rng(0)
    scenes = [draw_scene(generator) for _ in range(100)]
    sketches = sketch(draw_latents(scenes, 64, generator)[0])
    verdicts = [
        judge(image, Wish(scene.shape, scene.count, scene.colour, scene.background, None, scene.position))
        for scene, image in zip(scenes, sketches, strict=True)
    ]
    for attribute, least in {"colour": 0.98, "background": 0.98, "count": 0.98, "position": 0.98, "shape": 0.8}.items():
        assert np.mean([verdict[attribute] for verdict in verdicts]) >= least
