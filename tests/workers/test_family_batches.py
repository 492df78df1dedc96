"""An image depends on its own prompt and seed, and on nothing else in its batch or process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.workers.computing import Picture, compute, denoise, load_single, start
from workers.families import Family
from workers.model_file import FamilyName, ModelFile

PICTURE = Picture(seed=5)
MATES = [Picture(prompt="a cat", seed=6), Picture(prompt="x", seed=7), Picture(prompt="a red car at night", seed=8)]


@pytest.fixture(scope="module")
def family(tiny_model: Callable[[FamilyName], ModelFile]) -> Callable[[FamilyName], Family]:
    return functools.cache(lambda name: load_single(tiny_model(name)))


@pytest.mark.parametrize("width", [64, 96])
@pytest.mark.parametrize("name", FamilyName)
def test_mates_and_slot_change_nothing(name: FamilyName, width: int, family: Callable[..., Family]) -> None:
    picture, *mates = [replace(picture, width=width) for picture in (PICTURE, *MATES)]
    latents, pixels = compute(family(name), [picture], batch_size=4)
    for pictures in ([picture, *mates], [*mates, picture], [mates[0], picture], [mates[0], picture, picture]):
        slot = pictures.index(picture)
        others_latents, others_pixels = compute(family(name), pictures, batch_size=4)
        assert torch.equal(others_latents[slot], latents[0])
        assert np.array_equal(others_pixels[slot], pixels[0])


@pytest.mark.parametrize("name", FamilyName)
def test_padding_repeats_the_first_slot(name: FamilyName, family: Callable[..., Family]) -> None:
    latents, pixels = compute(family(name), [PICTURE, MATES[0]], batch_size=4)
    assert pixels.shape == (4, 64, 64, 3)
    assert torch.equal(latents[2], latents[0])
    assert torch.equal(latents[3], latents[0])
    assert not torch.equal(latents[1], latents[0])


@pytest.mark.parametrize("name", FamilyName)
def test_batches_share_no_schedule(name: FamilyName, family: Callable[..., Family]) -> None:
    pictures = [replace(PICTURE, steps=steps) for steps in (4, 5, 9)]
    alone = [compute(family(name), [picture])[0] for picture in pictures]
    together = [start(family(name), [picture]) for picture in pictures]
    for _ in range(4):
        for denoising in together:
            family(name).step(denoising)
    assert [denoising.step for denoising in together] == [4, 4, 4]
    for denoising, expected in zip(together, alone, strict=True):
        assert torch.equal(denoise(family(name), denoising).latents, expected)


@pytest.mark.parametrize("name", FamilyName)
def test_seeds_differ_in_noise(name: FamilyName, family: Callable[..., Family]) -> None:
    # torch's CPU generator reads the low 32 bits of a seed.
    seeds = (0, 1, 2**31, 2**63 + 7, 2**64 - 1)
    noises = [start(family(name), [replace(PICTURE, seed=seed)]).latents for seed in seeds]
    for i, noise in enumerate(noises):
        assert not any(torch.equal(noise, other) for other in noises[:i])
