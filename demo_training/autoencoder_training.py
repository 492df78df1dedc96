"""The VAE learns the prescribed latents: its decoder to draw them, its encoder to find them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from diffusers import AutoencoderKLFlux2
from torch import nn
from torch.nn import functional

from demo_training.dataset import Statistics
from demo_training.latents import CELL, LATENT_CHANNELS, draw_latents
from demo_training.networks import autoencoder
from demo_training.prompts import Wish
from demo_training.sampling import score
from demo_training.scenes import Scene, draw_scene

BATCHES = {32: 16, 64: 6, 96: 3, 128: 2}
"""Side in pixels to the images of a training step."""
CROP = 32
"""Side in pixels of the crops, around objects, that most steps are of."""
LARGER_FROM = 0.6
"""The part of the steps after which whole images are mixed in."""
WARM_UP = 100
"""Steps over which the learning rate rises."""
COOLING = 0.5
"""The part of the steps, the last, over which the learning rate falls along a line to 0."""
NOISE = 0.1
"""Standard deviation of the noise on normalised latents, which makes the decoder forgive the painter's errors."""
EDGE_WEIGHT = 4.0
"""Weight of pixels that objects cover, beyond the background's 1: they are few."""
ENCODER_EVERY = 4
"""One step in so many trains the encoder too: drawing from prompts never runs it."""


def train_autoencoder(steps: int, learning_rate: float, seed: int, log: Callable[..., None]) -> AutoencoderKLFlux2:
    """Train the VAE from nothing.

    Args:
        steps: Of the optimizer.
        learning_rate: At its highest.
        seed: Of weights, drawings and noise.
        log: Called with numbers by name now and then.
    """
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    statistics = Statistics.measure()
    network = autoencoder()
    _initialise(network)
    network = network.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=1e-4)
    start, cpu_start, errors, losses = time.monotonic(), time.process_time(), [], []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min((step + 1) / WARM_UP, 1.0, (steps - step) / (COOLING * steps))
        sides = (CROP, 64, 64, 96, 128) if step > LARGER_FROM * steps else (CROP,)
        latents, pixels, covered = _draw(sides[generator.integers(len(sides))], generator)
        tokens = statistics.normalise(latents)
        noisy = statistics.restore(tokens + NOISE * torch.randn_like(tokens))
        drawn = network.decoder(noisy)
        weights = 1 + EDGE_WEIGHT * covered
        distance = (drawn - pixels).abs()
        loss = (weights * (distance + distance.square())).mean() / weights.mean()
        errors.append(((distance * covered).sum() / covered.sum() / 3).item())
        if step % ENCODER_EVERY == 0:
            found = statistics.normalise(network.encoder(pixels)[:, :LATENT_CHANNELS])
            encoder_loss = functional.smooth_l1_loss(found, tokens)
            losses.append(encoder_loss.item())
            loss = loss + encoder_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 200 == 0:
            spent = {"seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - cpu_start}
            log(step=step + 1, object_error=np.mean(errors), encoder_loss=np.mean(losses), **spent)
            errors, losses = [], []
    return network.to(memory_format=torch.contiguous_format).eval()


@torch.no_grad()
def judge_reconstructions(network: AutoencoderKLFlux2) -> Mapping[str, float]:
    """Judge images of prescribed latents: more than that no painter can reach."""
    generator = np.random.default_rng(0)
    scenes = [draw_scene(generator) for _ in range(300)]
    wishes = [_wish(scene) for scene in scenes]
    scores: dict[str, float] = {}
    for side in (64, 96, 128):
        latents, _ = draw_latents(scenes, side, generator)
        drawn = torch.cat([network.decoder(part) for part in torch.split(torch.from_numpy(latents), 25)])
        images = ((drawn.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        scores |= {f"{attribute}_{side}": part for attribute, part in score(images, wishes).items()}
    return scores


def _draw(side: int, generator: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return latents, pixels (images, 3, side, side) from -1 to 1, and which pixels objects touch, 0 or 1.

    Sides of CROP are crops of images of 64 pixels.
    """
    scenes = [draw_scene(generator) for _ in range(BATCHES[side])]
    latents, pixels = draw_latents(scenes, max(side, 64), generator)
    covered = (abs(pixels - latents[:, None, None, :3, 0, 0]) > 0.02).any(axis=-1)
    if side == CROP:
        latents, pixels, covered = _crop(latents, pixels, covered, generator)
    target = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    return torch.from_numpy(latents), target, torch.from_numpy(covered[:, None].astype(np.float32))


def _crop(
    latents: np.ndarray, pixels: np.ndarray, covered: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut a square of CROP pixels around a random covered pixel out of each image, along the borders of cells."""
    cells = CROP // CELL
    parts = []
    for image in range(len(latents)):
        places = np.argwhere(covered[image])
        place = places[generator.integers(len(places))] // CELL - generator.integers(0, cells, size=2)
        row, column = np.clip(place, 0, latents.shape[2] - cells)
        top, left = row * CELL, column * CELL
        parts.append(
            (
                latents[image, :, row : row + cells, column : column + cells],
                pixels[image, top : top + CROP, left : left + CROP],
                covered[image, top : top + CROP, left : left + CROP],
            )
        )
    cropped_latents, cropped_pixels, cropped_covered = (np.stack(part) for part in zip(*parts, strict=True))
    return cropped_latents, cropped_pixels, cropped_covered


def _initialise(network: AutoencoderKLFlux2) -> None:
    """Let every residual block begin as the identity, so that latents reach the pixels from the first step on."""
    for name, module in network.named_modules():
        if name.endswith("conv2"):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)


def _wish(scene: Scene) -> Wish:
    return Wish(scene.shape, scene.count, scene.colour, scene.background, scene.size, scene.position)
