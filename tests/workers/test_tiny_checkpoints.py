"""The tiny checkpoints load like real ones, and prompts and seeds show in their images."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline

from workers.checkpoint import verify_checkpoint
from workers.model_file import Execution, FamilyName, Placement, load_model_file
from workers.tiny_checkpoints import write_tiny_checkpoint

WRITE_ALL = """
import sys
from pathlib import Path
from workers.model_file import FamilyName
from workers.tiny_checkpoints import write_tiny_checkpoint
for family in FamilyName:
    write_tiny_checkpoint(family, Path(sys.argv[1]) / family)
"""

PROMPTS = ("a cat", "a dog is dancing in the rain", "a painting of a squirrel eating a burger")
SEEDS = (0, 1, 2)
MIN_DIFFERENCE = 15
"""Mean absolute difference of pixels, of 255, from which two images are plainly different."""
MIN_CONTRAST = 25
"""Standard deviation of pixels, of 255, from which an image is plainly not grey."""

Draw = Callable[[str, int], np.ndarray]


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[FamilyName, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return {family: write_tiny_checkpoint(family, folder / family) for family in FamilyName}


def pipeline(model_file: Path, dtype: torch.dtype) -> Any:
    loaded = DiffusionPipeline.from_pretrained(model_file.parent / "checkpoint", dtype=dtype)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def pixels(loaded: Any, prompt: str, seed: int) -> np.ndarray:
    """Return the image of the plain pipeline call, as (64, 64, 3) floats from 0 to 255."""
    generator = torch.Generator("cpu").manual_seed(seed)
    image: np.ndarray = loaded(
        prompt=prompt,
        generator=generator,
        width=64,
        height=64,
        num_inference_steps=4,
        max_sequence_length=128,
        output_type="np",
    ).images[0]
    return image * 255


def difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FamilyName)
def test_prompts_and_seeds_give_plainly_different_images(
    model_files: Mapping[FamilyName, Path], family: FamilyName, dtype: torch.dtype
) -> None:
    loaded = pipeline(model_files[family], dtype)
    images = {(prompt, seed): pixels(loaded, prompt, seed) for prompt in PROMPTS for seed in SEEDS}

    for image in images.values():
        assert image.shape == (64, 64, 3)
        assert np.isfinite(image).all()
        assert image.std() >= MIN_CONTRAST
    for seed in SEEDS:
        for one, other in combinations(PROMPTS, 2):
            assert difference(images[one, seed], images[other, seed]) >= MIN_DIFFERENCE
    for prompt in PROMPTS:
        for one, other in combinations(SEEDS, 2):
            assert difference(images[prompt, one], images[prompt, other]) >= MIN_DIFFERENCE


@pytest.mark.parametrize("family", FamilyName)
def test_any_text_is_a_prompt_and_no_two_draw_the_same(
    model_files: Mapping[FamilyName, Path], family: FamilyName
) -> None:
    loaded = pipeline(model_files[family], torch.float32)
    prompts = ("", "猫", "犬", "🎨", "🎭", "a\nb", "ab", "naïve café", "[INST] </s> <|endoftext|>", "long " * 1000)
    images = [pixels(loaded, prompt, seed=0) for prompt in prompts]

    assert all(np.isfinite(image).all() for image in images)
    assert min(difference(one, other) for one, other in combinations(images, 2)) > 1


@pytest.mark.parametrize("family", FamilyName)
def test_model_file_loads_and_its_checkpoint_passes(model_files: Mapping[FamilyName, Path], family: FamilyName) -> None:
    model = load_model_file(model_files[family])

    assert model.name == f"tiny-{family}"
    assert model.revision == "random-0"
    assert model.family is family
    assert model.path == model_files[family].parent / "checkpoint"
    assert model.dtype == "float32"
    assert model.execution is Execution.EAGER
    assert model.placement is (Placement.SINGLE if family is FamilyName.SD3 else Placement.TENSOR_PARALLEL)
    assert [(bucket.width, bucket.height, bucket.batch_sizes) for bucket in model.buckets] == [
        (64, 64, (1, 2, 4)),
        (96, 64, (1, 2, 4)),
    ]
    verify_checkpoint(model, ranks=1)
    if model.placement is Placement.TENSOR_PARALLEL:
        verify_checkpoint(model, ranks=2)


def test_another_process_writes_the_same_bytes(model_files: Mapping[FamilyName, Path], tmp_path: Path) -> None:
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", WRITE_ALL, str(tmp_path)], env=environment, check=True, timeout=60)

    for family in FamilyName:
        assert contents(tmp_path / family) == contents(model_files[family].parent)


@pytest.mark.parametrize("family", FamilyName)
def test_small_on_disk(model_files: Mapping[FamilyName, Path], family: FamilyName) -> None:
    assert sum(len(data) for data in contents(model_files[family].parent).values()) < 4 * 2**20


def test_command_line_writes_a_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tiny_checkpoints", "sd3", str(tmp_path / "new" / "sd3")])
    runpy.run_module("workers.tiny_checkpoints", run_name="__main__")

    model_file = Path(capsys.readouterr().out.strip())
    assert model_file == tmp_path / "new" / "sd3" / "model.yaml"
    assert load_model_file(model_file).family is FamilyName.SD3


def contents(folder: Path) -> dict[Path, bytes]:
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
