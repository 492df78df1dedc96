"""What a whole model file says, as its documentation tells it; what is none is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.workers.model_file.files import MINIMAL, loaded, refusal, with_value, written
from workers.model_file import Bucket, Defaults, Execution, FamilyName, Limits, ModelFile, Placement, load_model_file

PAGE = Path(__file__).parents[3] / "docs" / "model-file.md"
"""The documentation of all keys."""


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
    example = re.search(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    model = load_model_file(written(tmp_path, example[1]))
    for section in (model, model.buckets[0], model.limits, model.limits.steps, model.defaults):
        assert section.model_fields_set == set(type(section).model_fields), "the example shows every key"


def test_the_documentation_names_every_key() -> None:
    page = PAGE.read_text(encoding="utf-8")
    sections = (("", ModelFile), ("", Bucket), ("limits.", Limits), ("defaults.", Defaults))
    keys = {prefix + key for prefix, section in sections for key in section.model_fields} - {"limits", "defaults"}
    assert {key for key in keys if f"`{key}`" not in page} == set()


def test_relative_path_starts_at_the_model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    file = written(tmp_path / "models", with_value("path", "../weights/sd3"))
    monkeypatch.chdir(tmp_path)
    for named in (file, file.relative_to(tmp_path)):
        assert load_model_file(named).path == tmp_path / "weights" / "sd3"


def test_absolute_path_stays(tmp_path: Path) -> None:
    assert loaded(tmp_path, "path", "/data/sd3").path == Path("/data/sd3")


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
