"""Sizes, prompt lengths and layers that a checkpoint can't compute are refused by the key at fault."""

from __future__ import annotations

import pytest

from tests.workers.checkpoint.spoiling import MakeModel, changed, edit_json, refusal, resized
from workers.checkpoint import verify_checkpoint
from workers.model_file import FamilyName


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
