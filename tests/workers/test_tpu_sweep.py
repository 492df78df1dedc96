"""Once warm, nothing compiles on torch_tpu, neither graphs nor operators, whatever a valid request asks for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.emulation import require_emulated_tpu
from tests.workers.tpu_processes import run_on_tpu
from workers.model_file import Execution, FamilyName

require_emulated_tpu()

SMALL = {"buckets": [{"width": 64, "height": 64, "batch_sizes": [1]}], "max_sequence_lengths": [64]}
LARGE = {
    "buckets": [{"width": width, "height": 64, "batch_sizes": [1, 3]} for width in (64, 96)],
    "max_sequence_lengths": [64, 128],
}
LARGE_SECONDS = 900.0


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("family", "execution", "submitted"),
    [
        pytest.param(FamilyName.FLUX, Execution.EAGER, 0, marks=pytest.mark.slow),
        (FamilyName.SD3, Execution.COMPILED, 2),  # with guidance and without
        (FamilyName.FLUX2, Execution.FUSED, 0),
    ],
)
def test_nothing_compiles_once_warm(
    family: FamilyName, execution: Execution, submitted: int, tiny_model_file: Any, tmp_path: Path
) -> None:
    told = _sweep(_model_file(tiny_model_file(family), tmp_path, SMALL, compile_scope="all"), execution)
    assert told["after"] == []
    assert told["batches"] == 12
    assert told["submitted"] == submitted, "graphs that compiled side by side"


@pytest.mark.slow
@pytest.mark.timeout(LARGE_SECONDS + 60)
@pytest.mark.parametrize("execution", Execution)
@pytest.mark.parametrize("family", FamilyName)
def test_nothing_compiles_once_every_shape_is_warm(
    family: FamilyName, execution: Execution, tiny_model_file: Any, tmp_path: Path
) -> None:
    told = _sweep(_model_file(tiny_model_file(family), tmp_path, LARGE), execution, LARGE_SECONDS)
    assert told["after"] == []
    assert told["batches"] == 2 * 2 * (2 * 4 + 8)


def _model_file(tiny: Path, folder: Path, shapes: dict[str, Any], **changes: str) -> Path:
    """Copy a tiny model, and have it serve these shapes."""
    model_file = shutil.copytree(tiny.parent, folder / "model") / "model.yaml"
    document = yaml.safe_load(model_file.read_text()) | changes
    document["buckets"] = shapes["buckets"]
    document["limits"]["max_sequence_lengths"] = shapes["max_sequence_lengths"]
    document["defaults"]["max_sequence_length"] = shapes["max_sequence_lengths"][0]
    model_file.write_text(yaml.safe_dump(document))
    return model_file


def _sweep(model_file: Path, execution: Execution, seconds: float = 300.0) -> Any:
    told = json.loads(run_on_tpu("tests.workers.tpu_sweep", [execution, str(model_file)], execution, seconds=seconds))
    for component in ("text_encoder", "transformer", "vae"):
        assert told["warm_up"][component]["compiled"] > 0, "the counters count"
    return told
