"""`pixelpod dev --device tpu`: the guide's three models in their placements, on the emulated TPU, end to end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.e2e.processes import start
from tests.e2e.services import PIXELPOD
from tests.emulation import emulated_environment, require_emulated_tpu
from tests.workers.computing import SEQUENCE_LENGTH, Picture, compute, load_single
from workers.model_file import FamilyName, load_model_file
from workers.tiny_checkpoints import write_tiny_checkpoint

require_emulated_tpu()

PROMPT = "a red fox"
READY_SECONDS = 200.0


@pytest.mark.timeout(READY_SECONDS + 60)
@pytest.mark.parametrize(
    ("family", "placement", "compile_scope"),
    [
        (FamilyName.FLUX, "offload", "repeated_blocks"),
        (FamilyName.SD3, "single", "transformer"),
        (FamilyName.FLUX2, "tensor_parallel", "transformer"),
    ],
)
def test_one_command_serves_the_model(family: FamilyName, placement: str, compile_scope: str, tmp_path: Path) -> None:
    model_file = write_tiny_checkpoint(family, tmp_path / family)
    _change(model_file, placement=placement, execution="compiled", compile_scope=compile_scope)
    output = tmp_path / "image.png"
    command = (
        *(*PIXELPOD, "dev", "--device", "tpu", "--ranks", "1", "--model", str(model_file)),
        *("--listen", "127.0.0.1:0", "--metrics", "none", "--prompt", PROMPT, "--output", str(output)),
    )
    with start(command, emulated_environment()) as process:
        assert process.wait(READY_SECONDS) == 0, process.log
        assert process.children() == []
    image = Image.open(output)
    model = load_model_file(model_file)
    picture = Picture(
        PROMPT,
        seed=int(image.text["seed"]),
        steps=model.defaults.steps,
        guidance_scale=model.defaults.guidance_scale,
    )
    _, expected = compute(load_single(model, execution="eager"), [picture])
    # float32: at most the rounding of a pixel.
    assert np.abs(np.asarray(image).astype(int) - expected[0]).max() <= 1


def _change(model_file: Path, **keys: str) -> None:
    """Set keys of a model file, and leave it one small shape."""
    document = yaml.safe_load(model_file.read_text()) | keys
    document["buckets"] = [{"width": 64, "height": 64, "batch_sizes": [1]}]
    document["limits"]["max_sequence_lengths"] = [SEQUENCE_LENGTH]
    document["defaults"]["max_sequence_length"] = SEQUENCE_LENGTH
    model_file.write_text(yaml.safe_dump(document))
