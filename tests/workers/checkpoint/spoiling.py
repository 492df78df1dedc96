"""Checkpoints that a test changes or damages, and what is said of them then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from workers.checkpoint import verify_checkpoint
from workers.errors import ModelRefused
from workers.model_file import Bucket, FamilyName, ModelFile

MakeModel = Callable[[FamilyName], ModelFile]
"""Returns a model of a family whose files the test may spoil."""


def refusal(model: ModelFile, ranks: int = 1) -> str:
    """Return why a checkpoint is refused."""
    with pytest.raises(ModelRefused) as caught:
        verify_checkpoint(model, ranks)
    return str(caught.value)


def edit_json(file: Path, **changes: Any) -> None:
    """Change keys of a JSON object in a file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def edit_text_config(model: ModelFile, **changes: Any) -> None:
    """Change keys of the text encoder's configuration."""
    file = model.path / "text_encoder" / "config.json"
    edit_json(file, text_config={**json.loads(file.read_text())["text_config"], **changes})


def changed(model: ModelFile, **changes: Any) -> ModelFile:
    """Return a model file with changed keys."""
    return model.model_copy(update=changes)


def resized(model: ModelFile, width: int, height: int) -> ModelFile:
    """Return a model file with this one bucket."""
    return changed(model, buckets=(Bucket(width=width, height=height),))


def shard(folder: Path, stem: str) -> tuple[Path, Path]:
    """Split the weights in `folder` into two shards with an index, as big checkpoints are; return the shards."""
    single = folder / f"{stem}.safetensors"
    tensors = load_file(single)
    names = sorted(tensors)
    first, second = folder / f"{stem}-00001-of-00002.safetensors", folder / f"{stem}-00002-of-00002.safetensors"
    halves = {first: names[: len(names) // 2], second: names[len(names) // 2 :]}
    for file, held in halves.items():
        save_file({name: tensors[name] for name in held}, file)
    weight_map = {name: file.name for file, held in halves.items() for name in held}
    single.with_name(f"{single.name}.index.json").write_text(json.dumps({"weight_map": weight_map}))
    single.unlink()
    return first, second
