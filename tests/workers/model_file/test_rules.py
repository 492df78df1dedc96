"""Values of a model file that don't fit each other are refused by the rule that they break."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.model_file.files import loaded, refusal, with_value, written
from workers.model_file import load_model_file


@pytest.mark.parametrize(
    ("steps_served", "fault"),
    [
        ([28, 4], "limits: steps_served must be ascending without repeats"),
        ([28, 51], "limits: steps_served must be within steps"),
        ([4, 8], "defaults.steps must be one of limits.steps_served"),
    ],
)
def test_steps_served_fit_the_limits_and_the_default(tmp_path: Path, steps_served: list[int], fault: str) -> None:
    assert refusal(written(tmp_path, with_value("limits.steps_served", steps_served))).endswith(f": {fault}")


@pytest.mark.parametrize("batch_sizes", [[2, 1], [1, 1], [1, 4, 2]])
def test_batch_sizes_ascend(tmp_path: Path, batch_sizes: list[int]) -> None:
    message = refusal(written(tmp_path, with_value("buckets.0.batch_sizes", batch_sizes)))
    assert message.endswith(": buckets.0: batch_sizes must be ascending without repeats")


@pytest.mark.parametrize("lengths", [[256, 128], [256, 256]])
def test_max_sequence_lengths_ascend(tmp_path: Path, lengths: list[int]) -> None:
    message = refusal(written(tmp_path, with_value("limits.max_sequence_lengths", lengths)))
    assert message.endswith(": limits: max_sequence_lengths must be ascending without repeats")


@pytest.mark.parametrize("key", ["steps", "num_images"])
def test_whole_ranges_are_ordered_and_start_at_one_or_more(tmp_path: Path, key: str) -> None:
    def told(minimum: int, maximum: int) -> str:
        return refusal(written(tmp_path, with_value(f"limits.{key}", {"min": minimum, "max": maximum})))

    assert told(5, 4).endswith(f": limits.{key}: min must not be above max")
    assert f": limits.{key}.min: " in told(0, 4)


@pytest.mark.parametrize(
    ("minimum", "maximum"), [(2.0, 1.0), (-1.0, 9.0), (0.0, float("inf")), (float("nan"), 9.0), (0.0, float("nan"))]
)
def test_guidance_range_is_finite_ordered_and_not_negative(tmp_path: Path, minimum: float, maximum: float) -> None:
    text = with_value("limits.guidance_scale", {"min": minimum, "max": maximum})
    assert refusal(written(tmp_path, text)).endswith(
        ": limits.guidance_scale: min and max must be finite, 0 or more, min not above max"
    )


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("buckets", [{"width": 64, "height": 64}] * 2, "buckets must have different sizes"),
        ("defaults.width", 768, "defaults.width and defaults.height must be one of the buckets"),
        ("defaults.height", 1024, "defaults.width and defaults.height must be one of the buckets"),
        ("defaults.steps", 51, "defaults.steps must be within limits.steps"),
        ("limits.steps", {"min": 30, "max": 40}, "defaults.steps must be within limits.steps"),
        ("defaults.guidance_scale", -0.1, "defaults.guidance_scale must be within limits.guidance_scale"),
        ("defaults.guidance_scale", 20.1, "defaults.guidance_scale must be within limits.guidance_scale"),
        ("defaults.guidance_scale", float("nan"), "defaults.guidance_scale must be within limits.guidance_scale"),
        ("defaults.num_images", 5, "defaults.num_images must be within limits.num_images"),
        ("limits.num_images", {"min": 2, "max": 4}, "defaults.num_images must be within limits.num_images"),
        (
            "defaults.max_sequence_length",
            255,
            "defaults.max_sequence_length must be one of limits.max_sequence_lengths",
        ),
        ("text_encoder_out_layers", [1, 2, 3], "text_encoder_out_layers is for family flux2 only"),
    ],
)
def test_rules_between_keys(tmp_path: Path, key: str, value: object, rule: str) -> None:
    assert refusal(written(tmp_path, with_value(key, value))).endswith(f": {rule}")


@pytest.mark.parametrize(("key", "value"), [("defaults.steps", 1), ("defaults.steps", 50), ("defaults.num_images", 4)])
def test_defaults_at_the_limits_pass(tmp_path: Path, key: str, value: int) -> None:
    assert getattr(loaded(tmp_path, key, value).defaults, key.removeprefix("defaults.")) == value


def test_flux2_may_name_its_layers(tmp_path: Path) -> None:
    text = with_value("text_encoder_out_layers", [9, 18, 27]).replace("family: sd3", "family: flux2")
    assert load_model_file(written(tmp_path, text)).text_encoder_out_layers == (9, 18, 27)
