"""`pixelpod dev --device tpu`: the guide's three models in their placements, on the emulated TPU, end to end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.e2e.groups import Group, images_of, pixels_of, running
from tests.e2e.processes import start, wait_serving
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
        pytest.param(FamilyName.FLUX, "offload", "repeated_blocks", marks=pytest.mark.slow),
        pytest.param(FamilyName.SD3, "single", "transformer", marks=pytest.mark.slow),
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


@contextmanager
def caching_group(model_file: Path, cache_dir: Path) -> Iterator[Group]:
    """Start a group on TPU and wait until it serves."""
    cache = {"cache_dir": cache_dir, "log_format": "json"}
    with running(model_file, 1, emulated_environment(), device="tpu", **cache) as group:
        wait_serving(group.address, READY_SECONDS, group.process)
        yield group


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    file = write_tiny_checkpoint(FamilyName.SD3, tmp_path / "sd3")
    _change(file, execution="compiled", compile_scope="all")
    return file


@pytest.mark.timeout(2 * READY_SECONDS)
def test_groups_share_a_compile_cache(model_file: Path, tmp_path: Path) -> None:
    with caching_group(model_file, tmp_path / "cache") as first:
        compiled, _ = _warm_up_compiles(first)
        assert compiled > 10
        (image,) = images_of(first.execute(model="tiny-sd3"))
    with caching_group(model_file, tmp_path / "cache") as second:
        compiled, cached = _warm_up_compiles(second)
        assert compiled == 0
        assert cached > 10
        (same_image,) = images_of(second.execute(model="tiny-sd3"))
        assert second.metric("pixelpod_group_compiles_after_ready_total") is None
    assert np.array_equal(pixels_of(same_image), pixels_of(image))


@pytest.mark.slow
@pytest.mark.timeout(2 * READY_SECONDS)
def test_a_broken_compile_cache_costs_a_compile(model_file: Path, tmp_path: Path) -> None:
    with caching_group(model_file, tmp_path / "cache") as first:
        (image,) = images_of(first.execute(model="tiny-sd3"))
    for file in (tmp_path / "cache").rglob("*"):
        if file.is_file():
            os.truncate(file, file.stat().st_size // 2)
    with caching_group(model_file, tmp_path / "cache") as second:
        compiled, _ = _warm_up_compiles(second)
        assert compiled > 0
        (same_image,) = images_of(second.execute(model="tiny-sd3"))
    assert np.array_equal(pixels_of(same_image), pixels_of(image))


def _warm_up_compiles(group: Group) -> tuple[int, int]:
    """Return how many programs were compiled in warm-up, and how many found in the cache."""
    entries = [json.loads(line) for line in group.process.log.splitlines() if "warm-up compiled" in line]
    (entry,) = entries
    return entry["compiled"][0], entry["cached"][0]


def _change(model_file: Path, **keys: str) -> None:
    """Set keys of a model file, and leave it one small shape."""
    document = yaml.safe_load(model_file.read_text()) | keys
    document["buckets"] = [{"width": 64, "height": 64, "batch_sizes": [1]}]
    document["limits"]["max_sequence_lengths"] = [SEQUENCE_LENGTH]
    document["defaults"]["max_sequence_length"] = SEQUENCE_LENGTH
    model_file.write_text(yaml.safe_dump(document))
