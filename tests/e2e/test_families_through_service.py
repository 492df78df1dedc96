"""An image through the service equals, bit for bit, the one that the plain diffusers pipeline makes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from pixelpod.client import Client
from tests.e2e.services import serving
from workers.model_file import FamilyName
from workers.tiny_checkpoints import write_tiny_checkpoint

PROMPT = "a lighthouse in a storm"


@dataclass(frozen=True)
class Served:
    client: Client
    pipeline: Any


FAMILIES = [
    FamilyName.SD3,
    pytest.param(FamilyName.FLUX, marks=pytest.mark.slow),
    pytest.param(FamilyName.FLUX2, marks=pytest.mark.slow),  # other tests here serve it
]


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A family behind the service on one rank, and as the pipeline that diffusers loads from the same folder."""
    model_file = write_tiny_checkpoint(request.param, tmp_path_factory.mktemp(str(request.param)))
    pipeline = diffusers.DiffusionPipeline.from_pretrained(model_file.parent / "checkpoint")
    pipeline.set_progress_bar_config(disable=True)
    with serving(model_file, ranks=1) as service, service.client() as client:
        yield Served(client, pipeline)


@pytest.mark.parametrize(
    ("width", "height", "steps", "guidance_scale", "seed"),
    [(64, 64, 4, 3.5, 0), (96, 64, 1, 1.0, 2**64 - 1), (96, 64, 7, 6.0, 7)],
)
def test_pixels_equal_the_plain_pipelines(
    served: Served, width: int, height: int, steps: int, guidance_scale: float, seed: int
) -> None:
    result = served.client.generate(
        PROMPT,
        width=width,
        height=height,
        steps=steps,
        guidance_scale=guidance_scale,
        seed=seed,
        max_sequence_length=64,
        deadline_seconds=60,
    )
    expected = served.pipeline(
        prompt=PROMPT,
        width=width,
        height=height,
        num_inference_steps=steps,
        guidance_scale=guidance_scale,
        generator=torch.Generator("cpu").manual_seed(seed),
        max_sequence_length=64,
    ).images[0]
    assert np.array_equal(_pixels(result.images[0].data), np.asarray(expected))
    assert result.parameters.seeds == (seed,)


def _pixels(image_file: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(image_file)))
