"""The grammar: what it words, and what it keeps from training."""

from __future__ import annotations

import numpy as np
import pytest

from demo_training.prompts import COLOUR_WORDS, SHAPE_WORDS, Wish, draw_wish, grammar_words, held_out_prompts, word
from demo_training.scenes import (
    CENTRE,
    COUNTS,
    PALETTE,
    POSITIONS,
    SHAPES,
    SIZES,
    Scene,
    default_background,
    draw_scene,
)

ATTRIBUTES = ("shape", "count", "colour", "background", "size", "position")


def test_as_many_attributes_as_the_model_promises() -> None:
    numbers = [len(values) for values in (PALETTE, SHAPES, COUNTS, SIZES, POSITIONS)]
    assert numbers == [10, 5, 3, 3, 9]
    assert COLOUR_WORDS.keys() == PALETTE.keys()
    assert SHAPE_WORDS.keys() == set(SHAPES)


def test_no_word_has_two_meanings() -> None:
    colours = [name for names in COLOUR_WORDS.values() for name in set(names)]
    shapes = [name for names in SHAPE_WORDS.values() for pair in set(names) for name in pair]
    assert len(colours + shapes) == len(set(colours + shapes))


def test_a_full_wish_names_each_attribute() -> None:
    wish = Wish("ring", 2, "cyan", "black", "large", (0, 2))
    generator = np.random.default_rng(0)
    for _ in range(200):
        words = set(word(wish, generator).replace(",", "").split())
        assert words & {"ring", "rings", "donuts", "hoops"}
        assert words & {"two", "2", "pair", "couple"}
        assert words & set(COLOUR_WORDS["cyan"])
        assert words & set(COLOUR_WORDS["black"])
        assert words & {"large", "big", "huge", "giant"}
        assert words & {"top", "upper"}
        assert "right" in words


def test_an_open_attribute_is_not_named() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        words = set(word(Wish(shape="circle"), generator).replace(",", "").split())
        assert not words & {name for names in COLOUR_WORDS.values() for name in names}
        assert not words & {"small", "large", "top", "left", "background", "on"}


def test_the_same_seed_gives_the_same_prompts() -> None:
    assert held_out_prompts(20, seed=3) == held_out_prompts(20, seed=3)
    assert held_out_prompts(20, seed=3) != held_out_prompts(20, seed=4)


def test_training_never_draws_what_is_held_out() -> None:
    generator = np.random.default_rng(0)
    scenes = [draw_wish(generator)[0] for _ in range(2000)]
    assert not any(scene.held_out for scene in scenes)
    held_out = [draw_scene(generator, held_out=True) for _ in range(200)]
    assert all(scene.held_out for scene in held_out)


def test_about_a_tenth_is_held_out() -> None:
    scenes = [
        Scene(shape, count, colour, background, "small", CENTRE)
        for shape in SHAPES
        for count in COUNTS
        for colour in PALETTE
        for background in PALETTE
        if colour != background
    ]
    assert 0.07 < np.mean([scene.held_out for scene in scenes]) < 0.13


def test_wishes_of_training_are_fulfilled() -> None:
    generator = np.random.default_rng(0)
    for _ in range(1000):
        scene, wish = draw_wish(generator)
        for attribute in ATTRIBUTES:
            assert getattr(wish, attribute) in (None, getattr(scene, attribute))
        if wish.position is None:
            assert scene.position == CENTRE
        if wish.background is None:
            assert scene.background == default_background(scene.colour)


@pytest.mark.parametrize("name", ["two", "circle", "boxes", "crimson", "background", "upper", "medium", "sized"])
def test_vocabulary(name: str) -> None:
    assert name in grammar_words()
