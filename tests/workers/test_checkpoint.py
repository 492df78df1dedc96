"""A checkpoint that can't be served is refused before its weights load, by the name of the file or key at fault."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from workers.checkpoint import sharing_ranks, verify_checkpoint
from workers.errors import ModelRefused
from workers.model_file import Bucket, FamilyName, ModelFile, Placement, load_model_file
from workers.tiny_checkpoints import write_tiny_checkpoint

MakeModel = Callable[[FamilyName], ModelFile]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Mapping[FamilyName, Path]:
    folder = tmp_path_factory.mktemp("originals")
    return {family: write_tiny_checkpoint(family, folder / family).parent for family in FamilyName}


@pytest.fixture
def copied(originals: Mapping[FamilyName, Path], tmp_path: Path) -> MakeModel:
    """Return a model whose files the test may spoil."""

    def copy(family: FamilyName) -> ModelFile:
        shutil.copytree(originals[family], tmp_path / family)
        return load_model_file(tmp_path / family / "model.yaml")

    return copy


def refusal(model: ModelFile, ranks: int = 1) -> str:
    with pytest.raises(ModelRefused) as caught:
        verify_checkpoint(model, ranks)
    return str(caught.value)


def edit_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def edit_text_config(model: ModelFile, **changes: Any) -> None:
    file = model.path / "text_encoder" / "config.json"
    edit_json(file, text_config={**json.loads(file.read_text())["text_config"], **changes})


def changed(model: ModelFile, **changes: Any) -> ModelFile:
    return model.model_copy(update=changes)


def resized(model: ModelFile, width: int, height: int) -> ModelFile:
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


# Files


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


# Classes


def test_pipeline_of_another_family(copied: MakeModel) -> None:
    model = changed(copied(FamilyName.FLUX), family=FamilyName.FLUX2)
    message = refusal(model)
    assert str(model.path / "model_index.json") in message
    assert "family flux2 needs a Flux2Pipeline, not FluxPipeline" in message


@pytest.mark.parametrize(
    ("component", "found"),
    [
        ("transformer", ["diffusers", "SD3Transformer2DModel"]),
        ("vae", ["my_code", "AutoencoderKL"]),
        ("text_encoder_2", [None, None]),
        ("scheduler", ["diffusers", "DDIMScheduler"]),
    ],
)
def test_component_of_another_class(copied: MakeModel, component: str, found: list[str | None]) -> None:
    model = copied(FamilyName.FLUX)
    edit_json(model.path / "model_index.json", **{component: found})
    message = refusal(model)
    assert f"{model.path / 'model_index.json'}: {component} must be" in message
    assert str(found[-1]) in message


def test_scheduler_of_another_class(copied: MakeModel) -> None:
    model = copied(FamilyName.SD3)
    config = model.path / "scheduler" / "scheduler_config.json"
    edit_json(config, _class_name="EulerAncestralDiscreteScheduler")
    message = refusal(model)
    assert str(config) in message
    assert "FlowMatchEulerDiscreteScheduler, not EulerAncestralDiscreteScheduler" in message


def test_scheduler_that_draws_noise(copied: MakeModel) -> None:
    model = copied(FamilyName.SD3)
    config = model.path / "scheduler" / "scheduler_config.json"
    edit_json(config, stochastic_sampling=True)
    assert f"{config}: stochastic_sampling must be false" in refusal(model)


# Ranks


@pytest.mark.parametrize(("family", "ranks"), [(FamilyName.FLUX, 4), (FamilyName.FLUX2, 2), (FamilyName.FLUX, 1)])
def test_degree_that_divides_the_heads_passes(copied: MakeModel, family: FamilyName, ranks: int) -> None:
    verify_checkpoint(copied(family), ranks)


@pytest.mark.parametrize("ranks", [3, 5, 8, 16])
def test_degree_that_does_not_divide_the_heads(copied: MakeModel, ranks: int) -> None:
    model = copied(FamilyName.FLUX)
    assert refusal(model, ranks) == (
        f"{model.path}: {ranks} ranks can't share transformer/config.json num_attention_heads 4; valid degrees: 1, 2, 4"
    )


def test_degree_that_neither_divides_the_text_encoder_nor_makes_copies_of_it(copied: MakeModel) -> None:
    model = copied(FamilyName.FLUX2)
    edit_text_config(model, num_key_value_heads=3, num_attention_heads=6, intermediate_size=96)
    message = refusal(model, ranks=2)
    assert "text_encoder/config.json text_config.num_key_value_heads 3" in message
    assert message.endswith("valid degrees: 1")


def test_degrees_of_the_real_flux2(copied: MakeModel) -> None:
    model = copied(FamilyName.FLUX2)
    edit_json(model.path / "transformer" / "config.json", num_attention_heads=48)
    edit_text_config(model, num_attention_heads=32, num_key_value_heads=8, intermediate_size=32768)
    for ranks in (1, 2, 4, 8, 16):
        verify_checkpoint(model, ranks)
    for ranks in (5, 12, 32):
        assert refusal(model, ranks).endswith("valid degrees: 1, 2, 4, 8, 16, 24, 48")


def test_a_text_encoder_is_split_as_far_as_it_goes(copied: MakeModel) -> None:
    model = copied(FamilyName.FLUX2)
    edit_text_config(model, num_attention_heads=32, num_key_value_heads=8, intermediate_size=32768)
    assert [sharing_ranks(model, "text_encoder", ranks) for ranks in (1, 4, 8, 16, 24)] == [1, 4, 8, 8, 8]
    assert sharing_ranks(model, "transformer", 4) == 4
    assert sharing_ranks(model, "vae", 4) == 4


def test_sd3_has_no_tensor_parallelism(copied: MakeModel) -> None:
    model = changed(copied(FamilyName.SD3), placement=Placement.TENSOR_PARALLEL)
    for ranks in (1, 2):
        assert "family sd3 has no tensor-parallel plan; use single or offload" in refusal(model, ranks)


@pytest.mark.parametrize("family", FamilyName)
@pytest.mark.parametrize("placement", [Placement.SINGLE, Placement.OFFLOAD])
def test_placements_of_one_rank(copied: MakeModel, family: FamilyName, placement: Placement) -> None:
    model = changed(copied(family), placement=placement)
    verify_checkpoint(model, ranks=1)
    assert f"a group of placement {placement} runs on one rank, not 2" in refusal(model, ranks=2)


# Shapes


@pytest.mark.parametrize("family", FamilyName)
def test_bucket_must_be_a_multiple_of_the_tokens_pixels(copied: MakeModel, family: FamilyName) -> None:
    model = copied(family)
    verify_checkpoint(resized(model, 80, 48), ranks=1)
    assert "buckets: 72x64: width must be a multiple of 16" in refusal(resized(model, 72, 64))
    assert "buckets: 64x100: height must be a multiple of 16" in refusal(resized(model, 64, 100))


def test_multiple_follows_the_vae_and_the_patch_size(copied: MakeModel) -> None:
    model = resized(copied(FamilyName.SD3), 64, 64)
    edit_json(model.path / "transformer" / "config.json", patch_size=4)
    verify_checkpoint(model, ranks=1)
    edit_json(model.path / "vae" / "config.json", block_out_channels=[8, 16, 16, 16, 16, 16])
    assert "must be a multiple of 128" in refusal(model)


def test_sd3_bucket_beyond_its_positions(copied: MakeModel) -> None:
    model = copied(FamilyName.SD3)
    verify_checkpoint(resized(model, 256, 256), ranks=1)
    message = refusal(resized(model, 64, 272))
    assert "buckets: 64x272: height must be at most 256, by pos_embed_max_size" in message
    assert str(model.path / "transformer" / "config.json") in message


@pytest.mark.parametrize(
    ("family", "largest"), [(FamilyName.FLUX, 512), (FamilyName.SD3, 512), (FamilyName.FLUX2, 1024)]
)
def test_sequence_length_beyond_the_text_encoder(copied: MakeModel, family: FamilyName, largest: int) -> None:
    model = copied(family)
    limits = model.limits.model_copy(update={"max_sequence_lengths": (64, largest)})
    verify_checkpoint(changed(model, limits=limits), ranks=1)
    limits = model.limits.model_copy(update={"max_sequence_lengths": (largest + 1, 64)})
    message = refusal(changed(model, limits=limits))
    assert f"limits.max_sequence_lengths: {largest + 1} is above the {largest} tokens" in message


def test_flux2_layers_must_exist(copied: MakeModel) -> None:
    model = copied(FamilyName.FLUX2)
    verify_checkpoint(changed(model, text_encoder_out_layers=(0, 1, 30)), ranks=1)
    for layers in ((10, 20, 31), (-1, 10, 20)):
        message = refusal(changed(model, text_encoder_out_layers=layers))
        assert "text_encoder_out_layers: must be 0 to 30" in message
        assert str(model.path / "text_encoder" / "config.json") in message


def test_flux2_layers_must_be_as_wide_as_the_transformer_reads(copied: MakeModel) -> None:
    model = changed(copied(FamilyName.FLUX2), text_encoder_out_layers=(10, 20))
    message = refusal(model)
    assert "text_encoder_out_layers: 32 values a token" in message
    assert f"{model.path / 'transformer' / 'config.json'} expects 48" in message


def test_verification_needs_no_torch() -> None:
    check = "import sys, workers.checkpoint; sys.exit('torch' in sys.modules or 'diffusers' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=30)
