"""A checkpoint whose parts are of other classes than its family has is refused."""

from __future__ import annotations

import pytest

from tests.workers.checkpoint.spoiling import MakeModel, changed, edit_json, refusal
from workers.model_file import FamilyName


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
