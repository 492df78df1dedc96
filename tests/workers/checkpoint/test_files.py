"""A missing or damaged file of a checkpoint is refused by its name before weights load."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.checkpoint.spoiling import MakeModel, changed, edit_json, refusal, shard
from workers.checkpoint import verify_checkpoint
from workers.model_file import FamilyName


@pytest.mark.parametrize("family", FamilyName)
def test_whole_checkpoint_passes(copied: MakeModel, family: FamilyName) -> None:
    verify_checkpoint(copied(family), ranks=1)


def test_sharded_checkpoint_passes(copied: MakeModel) -> None:
    model = copied(FamilyName.FLUX2)
    shard(model.path / "transformer", "diffusion_pytorch_model")
    shard(model.path / "text_encoder", "model")
    verify_checkpoint(model, ranks=2)


def test_missing_folder(copied: MakeModel) -> None:
    model = changed(copied(FamilyName.FLUX), path=Path("/nowhere/at/all"))
    assert "no folder /nowhere/at/all" in refusal(model)


REQUIRED_FILES = {
    FamilyName.FLUX: [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/config.json",
        "text_encoder/model.safetensors",
        "text_encoder_2/config.json",
        "text_encoder_2/model.safetensors",
        "transformer/config.json",
        "transformer/diffusion_pytorch_model.safetensors",
        "vae/config.json",
        "vae/diffusion_pytorch_model.safetensors",
    ],
    FamilyName.FLUX2: ["text_encoder/model.safetensors", "transformer/config.json"],
    FamilyName.SD3: ["text_encoder_3/model.safetensors", "text_encoder_2/config.json"],
}


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, names in REQUIRED_FILES.items() for name in names]
)
def test_missing_file_is_named(copied: MakeModel, family: FamilyName, name: str) -> None:
    model = copied(family)
    (model.path / name).unlink()
    assert str(model.path / name) in refusal(model)


def test_missing_tokenizer_is_named(copied: MakeModel) -> None:
    model = copied(FamilyName.SD3)
    (model.path / "tokenizer_2" / "tokenizer.json").unlink()
    assert f"{model.path / 'tokenizer_2'}: no tokenizer" in refusal(model)


@pytest.mark.parametrize("kept_bytes", [0, 7, 8, 100, -1])
def test_truncated_weights_are_named(copied: MakeModel, kept_bytes: int) -> None:
    model = copied(FamilyName.FLUX)
    weights = model.path / "transformer" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept_bytes])
    assert f"{weights}: truncated, {weights.stat().st_size} bytes" in refusal(model)


def test_truncated_shard_is_named(copied: MakeModel) -> None:
    model = copied(FamilyName.FLUX2)
    _, second = shard(model.path / "text_encoder", "model")
    second.write_bytes(second.read_bytes()[:-100])
    assert f"{second}: truncated" in refusal(model, ranks=2)


def test_missing_shard_is_named(copied: MakeModel) -> None:
    model = copied(FamilyName.FLUX2)
    _, second = shard(model.path / "transformer", "diffusion_pytorch_model")
    second.unlink()
    message = refusal(model, ranks=2)
    assert f"{second}: missing" in message
    assert "diffusion_pytorch_model.safetensors.index.json" in message


def test_shard_without_a_tensor_of_the_index_is_named(copied: MakeModel) -> None:
    model = copied(FamilyName.FLUX2)
    _, second = shard(model.path / "text_encoder", "model")
    tensors = load_file(second)
    lost = sorted(tensors)[0]
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, second)
    assert f"{second}: tensor {lost} is missing" in refusal(model)


def test_index_without_a_map_is_named(copied: MakeModel) -> None:
    model = copied(FamilyName.FLUX2)
    shard(model.path / "transformer", "diffusion_pytorch_model")
    index = model.path / "transformer" / "diffusion_pytorch_model.safetensors.index.json"
    for damaged in ({}, {"weight_map": ["a"]}, {"weight_map": {"a": 1}}):
        index.write_text(json.dumps(damaged))
        message = refusal(model)
        assert str(index) in message
        assert "weight_map" in message


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data + b"\0",
        lambda data: data[:8] + b"x" + data[9:],
        lambda data: (2).to_bytes(8, "little") + b"[]",
        lambda data: (7).to_bytes(8, "little") + b'{"a":1}',
        lambda data: b"<!DOCTYPE html><html><body>504 Gateway Timeout</body></html>",
    ],
    ids=["longer", "header no JSON", "header no object", "header without offsets", "an error page"],
)
def test_damaged_weights_are_named(copied: MakeModel, damage: Callable[[bytes], bytes]) -> None:
    model = copied(FamilyName.SD3)
    weights = model.path / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(damage(weights.read_bytes()))
    assert refusal(model).startswith(f"{weights}: ")


def test_pickled_weights_are_refused(copied: MakeModel) -> None:
    model = copied(FamilyName.FLUX)
    weights = model.path / "text_encoder_2" / "model.safetensors"
    pickled = weights.with_name("pytorch_model.bin")
    torch.save(load_file(weights), pickled)
    verify_checkpoint(model, ranks=1)  # beside safetensors nobody loads it

    weights.unlink()
    message = refusal(model)
    assert f"{pickled}: pickled" in message
    assert "convert them to model.safetensors" in message


@pytest.mark.parametrize("damaged", ["", "{", "[]", '"text"'])
def test_configuration_that_is_no_json_object_is_named(copied: MakeModel, damaged: str) -> None:
    model = copied(FamilyName.FLUX)
    config = model.path / "vae" / "config.json"
    config.write_text(damaged)
    assert refusal(model).startswith(f"{config}: ")


@pytest.mark.parametrize(
    ("component", "key", "value"),
    [
        ("transformer", "num_attention_heads", "four"),
        ("transformer", "num_attention_heads", 0),
        ("vae", "block_out_channels", 4),
        ("text_encoder", "text_config", {}),
        ("text_encoder", "text_config", 1),
    ],
)
def test_configuration_with_a_mistyped_key_is_named(copied: MakeModel, component: str, key: str, value: Any) -> None:
    model = copied(FamilyName.FLUX2)
    config = model.path / component / "config.json"
    edit_json(config, **{key: value})
    message = refusal(model)
    assert message.startswith(f"{config}: ")
    assert key in message


def test_verification_needs_no_torch() -> None:
    check = "import sys, workers.checkpoint; sys.exit('torch' in sys.modules or 'diffusers' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=30)
