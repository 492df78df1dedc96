"""A model file is read whole or refused by the name of the key at fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.workers.models import make_model
from workers.errors import ModelRefused
from workers.model_file import Bucket, Defaults, Execution, FamilyName, Limits, ModelFile, Placement, load_model_file

MINIMAL = """\
name: my-model
family: sd3
path: checkpoint
buckets:
- {width: 1024, height: 768}
limits:
  max_sequence_lengths: [256]
defaults: {width: 1024, height: 768, steps: 28, guidance_scale: 7, max_sequence_length: 256}
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "model.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def with_value(key: str, value: object) -> str:
    """Return the minimal file with another value under a dotted `key`."""
    document = yaml.safe_load(MINIMAL)
    *parents, last = key.split(".")
    section = document
    for parent in parents:
        section = section[int(parent)] if isinstance(section, list) else section.setdefault(parent, {})
    section[last] = value
    return yaml.safe_dump(document)


def without(key: str) -> str:
    """Return the minimal file without a dotted `key`."""
    document = yaml.safe_load(MINIMAL)
    section, _, last = key.rpartition(".")
    del (document[section] if section else document)[last]
    return yaml.safe_dump(document)


def loaded(folder: Path, key: str, value: object) -> ModelFile:
    return load_model_file(written(folder, with_value(key, value)))


def refusal(file: Path) -> str:
    with pytest.raises(ModelRefused) as caught:
        load_model_file(file)
    message = str(caught.value)
    assert str(file) in message
    assert "\n" not in message
    return message


def test_what_a_minimal_file_leaves_out_has_its_default(tmp_path: Path) -> None:
    model = load_model_file(written(tmp_path, MINIMAL))

    assert (model.name, model.revision, model.family) == ("my-model", "", FamilyName.SD3)
    assert (model.dtype, model.placement, model.execution) == ("bfloat16", Placement.SINGLE, Execution.EAGER)
    assert model.text_encoder_out_layers == (10, 20, 30)
    assert model.buckets[0].batch_sizes == (1,)
    limits, defaults = model.limits, model.defaults
    assert (limits.steps.min, limits.steps.max) == (1, 50)
    assert (limits.guidance_scale.min, limits.guidance_scale.max) == (0, 20)
    assert (limits.num_images.min, limits.num_images.max) == (1, 4)
    assert limits.max_prompt_bytes == 16384
    assert (defaults.num_images, defaults.output_format, defaults.quality) == (1, "PNG", 90)


def test_values_are_as_written(tmp_path: Path) -> None:
    model = load_model_file(written(tmp_path, MINIMAL))

    assert [(bucket.width, bucket.height) for bucket in model.buckets] == [(1024, 768)]
    assert model.limits.max_sequence_lengths == (256,)
    assert (model.defaults.width, model.defaults.height, model.defaults.steps) == (1024, 768, 28)
    assert (model.defaults.guidance_scale, model.defaults.max_sequence_length) == (7.0, 256)


def test_the_example_in_the_documentation_loads(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "model-file.md"
    example = re.search(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    model = load_model_file(written(tmp_path, example[1]))
    for section in (model, model.buckets[0], model.limits, model.limits.steps, model.defaults):
        assert section.model_fields_set == set(type(section).model_fields), "the example shows every key"


def test_the_documentation_names_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "model-file.md").read_text(encoding="utf-8")
    sections = (("", ModelFile), ("", Bucket), ("limits.", Limits), ("defaults.", Defaults))
    keys = {prefix + key for prefix, section in sections for key in section.model_fields} - {"limits", "defaults"}
    assert {key for key in keys if f"`{key}`" not in page} == set()


# The path


def test_relative_path_starts_at_the_model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    file = written(tmp_path / "models", with_value("path", "../weights/sd3"))
    monkeypatch.chdir(tmp_path)
    for named in (file, file.relative_to(tmp_path)):
        assert load_model_file(named).path == tmp_path / "weights" / "sd3"


def test_absolute_path_stays(tmp_path: Path) -> None:
    assert loaded(tmp_path, "path", "/data/sd3").path == Path("/data/sd3")


# No model file


def test_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.yaml").endswith("No such file or directory")


def test_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path).endswith("Is a directory")


@pytest.mark.parametrize("text", ["name: [", "\t- a", "a: b: c"])
def test_text_that_is_no_yaml(tmp_path: Path, text: str) -> None:
    message = refusal(written(tmp_path, text))
    assert "is no YAML" in message
    assert "line 1" in message


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_bytes(b"\xff\xfe\xfd\x00")
    assert "is no YAML" in refusal(file)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words", "7"])
def test_yaml_that_is_no_mapping(tmp_path: Path, text: str) -> None:
    assert "a mapping of keys is expected" in refusal(written(tmp_path, text))


def test_yaml_that_builds_objects_is_refused(tmp_path: Path) -> None:
    assert "is no YAML" in refusal(written(tmp_path, "name: !!python/object/apply:os.getpid []\n"))


# Keys


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


def test_item_of_a_list_is_named(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, with_value("buckets.0.batch_sizes", [1, "2"])))
    assert message.endswith(": buckets.0.batch_sizes.1: Input should be a valid integer")


# Rules between keys


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


# Buckets


def test_bucket_is_found_by_its_size(tmp_path: Path) -> None:
    model = load_model_file(written(tmp_path, MINIMAL))
    assert model.bucket(1024, 768) is model.buckets[0]
    assert model.bucket(768, 1024) is None


@pytest.mark.parametrize(("images", "padded"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 4)])
def test_images_are_padded_to_the_next_batch_size(tmp_path: Path, images: int, padded: int) -> None:
    bucket = loaded(tmp_path, "buckets.0.batch_sizes", [1, 2, 4]).buckets[0]
    assert bucket.padded_batch_size(images) == padded


def test_deterministic_leaves_each_bucket_its_largest_batch() -> None:
    model = make_model(deterministic=True)
    assert [bucket.batch_sizes for bucket in model.buckets] == [(4,), (2,)]
    assert [bucket.batch_sizes for bucket in make_model().buckets] == [(1, 2, 4), (2,)]
