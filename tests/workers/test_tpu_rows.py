"""Every execution mode and placement of the TPU guide runs on torch_tpu, and draws what the CPU draws."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.emulation import require_emulated_tpu
from tests.workers.computing import compute, load_single
from tests.workers.tpu_processes import SECONDS, run_on_tpu
from tests.workers.tpu_rows import PICTURE, ROWS
from workers.model_file import Execution, FamilyName

require_emulated_tpu()

BOUNDS = {"float32": 1e-4, "bfloat16": 0.1}
"""Largest difference of latents, as a part of the largest latent, for `PICTURE` (guidance 4).

Not a bound for every request: at guidance 7.5 FLUX.2 in float32 differed by 2.3e-4 of the largest latent, and in
bfloat16, where the tiny model amplifies rounding, by about a tenth.
"""


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize(
    ("execution", "dtype"),
    [
        (Execution.EAGER, "float32"),
        pytest.param(Execution.FUSED, "float32", marks=pytest.mark.slow),
        pytest.param(Execution.COMPILED, "float32", marks=pytest.mark.slow),
        pytest.param(Execution.COMPILED, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_every_placement_draws_what_the_cpu_draws(
    execution: Execution, dtype: str, tiny_model_file, tiny_model, tmp_path: Path
) -> None:
    _copy_models(tiny_model_file, tmp_path, list(ROWS))
    _compute_rows(execution, dtype, tmp_path, list(ROWS))
    for family in ROWS:
        result = np.load(tmp_path / f"{family}.npz")
        latents, pixels = compute(load_single(tiny_model(family), dtype=dtype), [PICTURE])
        expected = latents.float().numpy()
        difference = np.abs(result["latents"] - expected).max() / np.abs(expected).max()
        assert difference < BOUNDS[dtype], family
        assert result["pixels"].shape == pixels.shape
        assert np.abs(result["pixels"].astype(int) - pixels).mean() < 255 * BOUNDS[dtype], family


def _copy_models(tiny_model_file, folder: Path, families: list[FamilyName]) -> None:
    for family in families:
        shutil.copytree(tiny_model_file(family).parent, folder / family)


def _compute_rows(execution: Execution, dtype: str, folder: Path, families: list[FamilyName]) -> None:
    """Run the rows in a process with an emulated TPU."""
    run_on_tpu("tests.workers.tpu_rows", [execution, dtype, str(folder), *families], execution)
