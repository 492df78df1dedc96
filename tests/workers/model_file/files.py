"""Model files that differ from a minimal one in one thing, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from workers.errors import ModelRefused
from workers.model_file import ModelFile, load_model_file

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
    """Write a model file into a folder; return its path."""
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
    """Return the minimal model with another value under a dotted `key`."""
    return load_model_file(written(folder, with_value(key, value)))


def refusal(file: Path) -> str:
    """Return why a file is refused: one line that names it."""
    with pytest.raises(ModelRefused) as caught:
        load_model_file(file)
    message = str(caught.value)
    assert str(file) in message
    assert "\n" not in message
    return message
