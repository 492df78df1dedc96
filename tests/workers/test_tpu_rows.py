"""Every execution mode and placement of the TPU guide runs on torch_tpu, and draws what the CPU draws."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.emulation import emulated_environment, require_emulated_tpu
from tests.workers.computing import compute, load_single
from tests.workers.tpu_rows import PICTURE, ROWS
from workers.model_file import Execution

require_emulated_tpu()

SECONDS = 400.0
BOUNDS = {"float32": 1e-4, "bfloat16": 0.1}
"""Largest difference of latents, relative to the largest latent: measured 1e-6 to 2e-5, and 0.02 to 0.06."""


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize(
    ("execution", "dtype"),
    [
        (Execution.EAGER, "float32"),
        (Execution.FUSED, "float32"),
        (Execution.COMPILED, "float32"),
        (Execution.COMPILED, "bfloat16"),
    ],
)
def test_every_placement_draws_what_the_cpu_draws(
    execution: Execution, dtype: str, tiny_model_file, tiny_model, tmp_path: Path
) -> None:
    for family in ROWS:
        shutil.copytree(tiny_model_file(family).parent, tmp_path / family)
    command = [sys.executable, "-m", "tests.workers.tpu_rows", execution, dtype, str(tmp_path)]
    variables = {**os.environ, **emulated_environment()}
    prepare = "import json; from workers.devices import device_named; from workers.model_file import Execution;"
    show = f"print(json.dumps(device_named('tpu').prepare_environment(1, Execution('{execution}'))))"
    variables |= _printed([sys.executable, "-c", prepare + show], variables)
    process = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SECONDS)
    assert process.returncode == 0, process.stderr[-4000:]
    for family in ROWS:
        result = np.load(tmp_path / f"{family}.npz")
        latents, pixels = compute(load_single(tiny_model(family), dtype=dtype), [PICTURE])
        expected = latents.float().numpy()
        difference = np.abs(result["latents"] - expected).max() / np.abs(expected).max()
        assert difference < BOUNDS[dtype], family
        assert result["pixels"].shape == pixels.shape
        assert np.abs(result["pixels"].astype(int) - pixels).mean() < 255 * BOUNDS[dtype], family


def _printed(command: list[str], variables: dict[str, str]) -> dict[str, str]:
    """Return the JSON object that a command prints last."""
    output = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True).stdout
    printed: dict[str, str] = json.loads(output.splitlines()[-1])
    return printed
