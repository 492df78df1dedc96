"""The model files that the package ships: they load, they fit their checkpoint and the chip in their name."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.workers.shipped_models import MODEL_FILES, with_configs, with_hollow_checkpoint
from workers.checkpoint import verify_checkpoint
from workers.model_file import CompileScope, Execution, ModelFile, Placement, load_model_file
from workers.plan import Chip, make_plan


class Served(NamedTuple):
    """What a model file must say."""

    steps: int
    guidance_scale: float
    max_sequence_length: int
    placement: Placement
    compile_scope: CompileScope
    ranks: int


EXPECTED = {
    "flux1-schnell-v6e": Served(4, 0.0, 256, Placement.OFFLOAD, CompileScope.REPEATED_BLOCKS, 1),
    "flux1-schnell-v7x": Served(4, 0.0, 256, Placement.SINGLE, CompileScope.TRANSFORMER, 1),
    "flux2-dev-v6e": Served(28, 4.0, 512, Placement.TENSOR_PARALLEL, CompileScope.TRANSFORMER, 8),
    "flux2-dev-v7x": Served(28, 4.0, 512, Placement.TENSOR_PARALLEL, CompileScope.TRANSFORMER, 2),
    "sd3.5-medium-v6e": Served(40, 4.5, 256, Placement.SINGLE, CompileScope.TRANSFORMER, 1),
    "sd3.5-medium-v7x": Served(40, 4.5, 256, Placement.SINGLE, CompileScope.TRANSFORMER, 1),
}
"""Placement, steps and guidance of v6e are those of the diffusers guide to TPUs; ranks are the fewest of its chips."""


def shipped(name: str) -> ModelFile:
    return load_model_file(MODEL_FILES / f"{name}.yaml")


def test_every_model_is_there_for_every_chip() -> None:
    assert {file.stem for file in MODEL_FILES.iterdir()} == set(EXPECTED)
    assert {name.rpartition("-")[2] for name in EXPECTED} == set(Chip)


@pytest.mark.parametrize("name", EXPECTED)
def test_settings(name: str) -> None:
    model, expected = shipped(name), EXPECTED[name]
    assert model.name == name.rpartition("-")[0]
    assert (model.dtype, model.execution) == ("bfloat16", Execution.COMPILED)
    assert (model.placement, model.compile_scope) == (expected.placement, expected.compile_scope)
    assert (model.buckets[0].width, model.buckets[0].height) == (1024, 1024)
    defaults = model.defaults
    assert (defaults.width, defaults.height) == (1024, 1024)
    assert (defaults.steps, defaults.guidance_scale) == (expected.steps, expected.guidance_scale)
    assert defaults.max_sequence_length == expected.max_sequence_length


@pytest.mark.parametrize("name", EXPECTED)
def test_checkpoint_is_accepted(name: str, tmp_path: Path) -> None:
    """Buckets, prompt lengths, text encoder layers and ranks suit the real configs."""
    verify_checkpoint(with_hollow_checkpoint(shipped(name), tmp_path), EXPECTED[name].ranks)


@pytest.mark.parametrize("name", EXPECTED)
def test_placement_fits_the_chip(name: str) -> None:
    chip = Chip(name.rpartition("-")[2])
    assert make_plan(with_configs(shipped(name)), chip, EXPECTED[name].ranks).refusal() == ""


@pytest.mark.parametrize("name", ["flux1-schnell", "flux2-dev", "sd3.5-medium"])
def test_callers_see_the_same_model_on_both_chips(name: str) -> None:
    v6e, v7x = shipped(f"{name}-v6e"), shipped(f"{name}-v7x")
    for key in ("revision", "path", "limits", "defaults"):
        assert getattr(v6e, key) == getattr(v7x, key)
    assert [(b.width, b.height) for b in v6e.buckets] == [(b.width, b.height) for b in v7x.buckets]


@pytest.mark.parametrize("name", EXPECTED)
def test_sizes_hold_about_a_megapixel(name: str) -> None:
    """What the models were trained at; both ways up."""
    sizes = {(bucket.width, bucket.height) for bucket in shipped(name).buckets}
    assert sizes == {(height, width) for width, height in sizes}
    assert all(0.95 < width * height / 1024**2 <= 1.0 for width, height in sizes)
