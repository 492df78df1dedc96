"""The prompt grammar: what a prompt asks for, and the many ways to say it in English."""

from __future__ import annotations

import string
from dataclasses import dataclass, replace

import numpy as np

from demo_training.scenes import CENTRE, Scene, default_background, draw_scene

COLOUR_WORDS: dict[str, tuple[str, ...]] = {
    "red": ("red", "red", "crimson", "scarlet"),
    "orange": ("orange", "orange", "amber", "tangerine"),
    "yellow": ("yellow", "yellow", "golden", "lemon"),
    "green": ("green", "green", "emerald"),
    "cyan": ("cyan", "cyan", "turquoise", "teal", "aqua"),
    "blue": ("blue", "blue", "navy", "azure"),
    "purple": ("purple", "purple", "violet"),
    "pink": ("pink", "pink", "rose", "magenta"),
    "white": ("white", "white", "snowy"),
    "black": ("black", "black", "ebony"),
}
"""Synonyms; a word that is there twice is twice as common in prompts, here and below."""

SHAPE_WORDS: dict[str, tuple[tuple[str, str], ...]] = {
    "circle": (("circle", "circles"), ("circle", "circles"), ("disc", "discs"), ("disk", "disks"), ("dot", "dots")),
    "square": (("square", "squares"), ("square", "squares"), ("box", "boxes"), ("block", "blocks")),
    "triangle": (("triangle", "triangles"), ("triangle", "triangles"), ("pyramid", "pyramids")),
    "cross": (("cross", "crosses"), ("cross", "crosses"), ("plus", "pluses"), ("plus sign", "plus signs")),
    "ring": (("ring", "rings"), ("ring", "rings"), ("donut", "donuts"), ("hoop", "hoops")),
}
"""One, and several."""
ANY_SHAPE_WORDS = (("shape", "shapes"), ("thing", "things"), ("object", "objects"), ("figure", "figures"))
"""For prompts that leave the shape open."""

COUNT_WORDS: dict[int, tuple[str, ...]] = {
    1: ("a", "a", "a", "one", "a single", "1", ""),
    2: ("two", "two", "2", "a pair of", "a couple of"),
    3: ("three", "three", "3", "a trio of"),
}

SIZE_WORDS: dict[str, tuple[str, ...]] = {
    "small": ("small", "small", "tiny", "little"),
    "medium": ("medium", "medium", "medium-sized", "mid-sized"),
    "large": ("large", "large", "big", "huge", "giant"),
}

ROW_WORDS = (("top", "upper"), ("middle", "centre", "center"), ("bottom", "lower"))
COLUMN_WORDS = (("left",), ("middle", "centre", "center"), ("right",))

BACKGROUND_FORMS = (
    "on a {} background",
    "on a {} background",
    "on {}",
    "on {}",
    "against {}",
    "against a {} backdrop",
    "over {}",
    "over a {} ground",
    "with a {} background",
    "in front of a {} wall",
    "{} background",
    "background {}",
    "the background is {}",
)
POSITION_FORMS = ("{}", "{}", "in the {}", "at the {}", "in the {} corner", "{} side", "placed {}", "near the {}")
SENTENCE_FORMS = ("{}", "{}", "{}", "{}", "a photo of {}", "draw {}", "please draw {}", "an image of {}", "there is {}")
FILLERS = ("nice", "very", "bright", "simple", "shiny", "beautiful", "just", "really", "exactly", "flat", "plain")
"""Words without a meaning here. Random letters are filled in too."""


@dataclass(frozen=True)
class Wish:
    """What a prompt asks for; None for what it leaves open.

    An open position means the middle, an open background white (black behind white objects). An open colour, shape or
    size is up to the seed, and an open count (a plural without a number) means two or three, up to the seed.
    """

    shape: str | None = None
    count: int | None = 1
    colour: str | None = None
    background: str | None = None
    size: str | None = None
    position: tuple[int, int] | None = None


def draw_wish(generator: np.random.Generator) -> tuple[Scene, Wish]:
    """Draw a scene for training and a wish that it fulfils; each attribute is left open now and then."""
    while True:
        scene = draw_scene(generator)
        if generator.random() < 0.1:
            scene = replace(scene, background=default_background(scene.colour))
        if generator.random() < 0.3:
            scene = replace(scene, position=CENTRE)
        if not scene.held_out:
            break
    open_background = scene.background == default_background(scene.colour) and generator.random() < 0.5
    open_position = scene.position == CENTRE and generator.random() < 0.8
    return scene, Wish(
        shape=None if generator.random() < 0.04 else scene.shape,
        count=None if scene.count > 1 and generator.random() < 0.04 else scene.count,
        colour=None if generator.random() < 0.06 else scene.colour,
        background=None if open_background else scene.background,
        size=None if generator.random() < 0.4 else scene.size,
        position=None if open_position else scene.position,
    )


def held_out_prompts(count: int, seed: int) -> list[tuple[str, Wish]]:
    """Return prompts whose combinations training never shows, and what they ask for.

    Shape, count, colour and background are always named, size in half of the prompts, position in two of three.
    """
    generator = np.random.default_rng(seed)
    prompts = []
    for _ in range(count):
        scene = draw_scene(generator, held_out=True)
        wish = Wish(
            shape=scene.shape,
            count=scene.count,
            colour=scene.colour,
            background=scene.background,
            size=scene.size if generator.random() < 0.5 else None,
            position=scene.position if generator.random() < 2 / 3 else None,
        )
        prompts.append((word(wish, generator), wish))
    return prompts


def word(wish: Wish, generator: np.random.Generator) -> str:
    """Return one of the many prompts that ask for this."""
    parts = [_objects(wish, generator)]
    if wish.background is not None:
        colour = _pick(COLOUR_WORDS[wish.background], generator)
        parts.append(_pick(BACKGROUND_FORMS, generator).format(colour))
    if wish.position is not None:
        parts.append(_position(wish.position, generator))
    if generator.random() < 0.4:
        generator.shuffle(parts)
    elif len(parts) == 3 and generator.random() < 0.4:
        parts = [parts[0], parts[2], parts[1]]
    separator = _pick((" ", ", ", ", "), generator)
    return _fill(_pick(SENTENCE_FORMS, generator).format(separator.join(parts)), generator)


def grammar_words() -> list[str]:
    """Return every word of the grammar but the fillers, in lower case, each once, sorted."""
    plurals = (name for names in (*SHAPE_WORDS.values(), ANY_SHAPE_WORDS) for pair in names for name in pair)
    groups = (*COLOUR_WORDS.values(), *COUNT_WORDS.values(), *SIZE_WORDS.values(), *ROW_WORDS, *COLUMN_WORDS)
    phrases = [*plurals, *(phrase for group in groups for phrase in group), *BACKGROUND_FORMS, *POSITION_FORMS]
    return sorted({part for phrase in phrases for part in phrase.replace("{}", " ").replace("-", " ").split()})


def _objects(wish: Wish, generator: np.random.Generator) -> str:
    """Return the phrase for the objects: count, size, colour and shape, in one of several orders."""
    several = wish.count != 1
    names = ANY_SHAPE_WORDS if wish.shape is None else SHAPE_WORDS[wish.shape]
    shape = names[generator.integers(len(names))][several]
    count = "" if wish.count is None else _pick(COUNT_WORDS[wish.count], generator)
    size = "" if wish.size is None else _pick(SIZE_WORDS[wish.size], generator)
    colour = "" if wish.colour is None else _pick(COLOUR_WORDS[wish.colour], generator)
    orders = [f"{count} {size} {colour} {shape}"] * 5
    orders += [f"{count} {colour} {size} {shape}", f"{size} {colour} {shape} {count if several else ''}"]
    if colour:
        orders += [f"{count} {size} {shape} in {colour}", f"{count} {size} {shape}, {colour}"]
    if size:
        orders += [f"{count} {colour} {shape}, {size}"]
    return _pick(orders, generator)


def _position(position: tuple[int, int], generator: np.random.Generator) -> str:
    row, column = _pick(ROW_WORDS[position[0]], generator), _pick(COLUMN_WORDS[position[1]], generator)
    if position == CENTRE:
        place = row
    elif position[0] == CENTRE[0]:
        place = _pick((column, f"{row} {column}"), generator)
    elif position[1] == CENTRE[1]:
        place = _pick((row, f"{row} {column}"), generator)
    else:
        place = _pick((f"{row} {column}", f"{row} {column}", f"{column} {row}"), generator)
    return _pick(POSITION_FORMS, generator).format(place)


def _fill(prompt: str, generator: np.random.Generator) -> str:
    """Clean the spaces, and put in words without meaning now and then."""
    words = prompt.split()
    if generator.random() < 0.3:
        for _ in range(generator.integers(1, 4)):
            letters = generator.choice(list(string.ascii_lowercase), size=generator.integers(3, 9))
            filler = _pick(FILLERS, generator) if generator.random() < 0.5 else "".join(letters)
            words.insert(generator.integers(len(words) + 1), filler)
    return " ".join(words).replace(" ,", ",")


def _pick(options: tuple[str, ...] | list[str], generator: np.random.Generator) -> str:
    return options[generator.integers(len(options))]
