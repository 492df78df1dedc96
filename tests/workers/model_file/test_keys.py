"""Unknown, missing, repeated and mistyped keys of a model file are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.model_file.files import MINIMAL, refusal, with_value, without, written
from workers.model_file import load_model_file


@pytest.mark.parametrize(
    "key", ["dtyp", "buckets.0.batchsizes", "limits.step", "limits.steps.maximum", "defaults.guidance", "defaults.seed"]
)
def test_unknown_key_is_named(tmp_path: Path, key: str) -> None:
    text = with_value(key, 4)
    if key == "limits.steps.maximum":
        text = text.replace("maximum: 4", "max: 50\n    maximum: 4")
    assert refusal(written(tmp_path, text)).endswith(f": {key}: unknown key")


@pytest.mark.parametrize(
    "key", ["name", "family", "path", "buckets", "limits", "limits.max_sequence_lengths", "defaults", "defaults.steps"]
)
def test_missing_key_is_named(tmp_path: Path, key: str) -> None:
    assert refusal(written(tmp_path, without(key))).endswith(f": {key}: Field required")


def test_repeated_key_is_named(tmp_path: Path) -> None:
    assert "key steps is repeated" in refusal(written(tmp_path, MINIMAL.replace("steps: 28", "steps: 28, steps: 4")))


def test_merged_key_may_be_overridden(tmp_path: Path) -> None:
    merged = "- &first {width: 1024, height: 768, batch_sizes: [1, 2]}\n- {<<: *first, width: 768}\n"
    model = load_model_file(written(tmp_path, MINIMAL.replace("- {width: 1024, height: 768}\n", merged)))
    assert model.buckets[1].model_dump() == {"width": 768, "height": 768, "batch_sizes": (1, 2)}


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    text = with_value("defaults.steps", "four").replace("name: my-model", "nam: my-model")
    assert refusal(written(tmp_path, text)).endswith(
        ": name: Field required; defaults.steps: Input should be a valid integer; nam: unknown key"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", 7),
        ("name", ""),
        ("name", "a name"),
        ("name", "-a"),
        ("name", "a" * 64),
        ("revision", 1.0),
        ("family", "flux3"),
        ("path", 7),
        ("path", None),
        ("dtype", "float8"),
        ("placement", "everywhere"),
        ("execution", True),
        ("on_warm_up_failure", "ignore"),
        ("limits.steps_served", 4),
        ("buckets", []),
        ("buckets", {"width": 64, "height": 64}),
        ("buckets.0.width", "1024"),
        ("buckets.0.width", 0),
        ("buckets.0.height", 768.0),
        ("buckets.0.height", -768),
        ("buckets.0.batch_sizes", []),
        ("buckets.0.batch_sizes", 2),
        ("buckets.0.batch_sizes", "12"),
        ("limits.steps", 50),
        ("limits.steps.max", "50"),
        ("limits.max_prompt_bytes", 0),
        ("limits.max_sequence_lengths", []),
        ("limits.max_sequence_lengths", 256),
        ("defaults.steps", "four"),
        ("defaults.steps", True),
        ("defaults.steps", None),
        ("defaults.steps", 0),
        ("defaults.guidance_scale", "7"),
        ("defaults.num_images", 0),
        ("defaults.output_format", "GIF"),
        ("defaults.output_format", "png"),
        ("defaults.quality", 0),
        ("defaults.quality", 101),
    ],
)
def test_mistyped_value_is_named(tmp_path: Path, key: str, value: object) -> None:
    assert f": {key}: " in refusal(written(tmp_path, with_value(key, value)))


def test_item_of_a_list_is_named(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, with_value("buckets.0.batch_sizes", [1, "2"])))
    assert message.endswith(": buckets.0.batch_sizes.1: Input should be a valid integer")
