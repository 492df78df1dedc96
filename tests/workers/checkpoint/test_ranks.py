"""How many ranks can share a checkpoint, and which placement takes how many."""

from __future__ import annotations

import pytest

from tests.workers.checkpoint.spoiling import MakeModel, changed, edit_json, edit_text_config, refusal
from workers.checkpoint import sharing_ranks, verify_checkpoint
from workers.model_file import FamilyName, Placement


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
