from __future__ import annotations

from typing import Any

import pytest

from pixelpod.server.errors import InvalidRequest, UnknownModel
from tests.workers.models import make_model, make_request
from workers.validation import check_request


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"width": 128},
        {"steps": 1},
        {"steps": 50},
        {"guidance_scale": 0.0},
        {"seeds": [0] * 8},
        {"prompt": "ü" * 50},
    ],
)
def test_what_is_served_gets_its_bucket(changes: dict[str, Any]) -> None:
    bucket = check_request(make_request(**changes), make_model())
    assert (bucket.width, bucket.height) == (changes.get("width", 64), 64)


@pytest.mark.parametrize(
    ("changes", "field", "limit"),
    [
        ({"width": 72}, "width", "64x64, 128x64"),
        ({"width": 64, "height": 128}, "width", "64x64, 128x64"),
        ({"max_sequence_length": 78}, "max_sequence_length", "77, 256"),
        ({"steps": 0}, "steps", "1 to 50"),
        ({"steps": 51}, "steps", "1 to 50"),
        ({"guidance_scale": -0.1}, "guidance_scale", "0.0 to 10.0"),
        ({"guidance_scale": float("nan")}, "guidance_scale", "0.0 to 10.0"),
        ({"guidance_scale": float("inf")}, "guidance_scale", "0.0 to 10.0"),
        ({"seeds": []}, "num_images", "1 to 8"),
        ({"seeds": [0] * 9}, "num_images", "1 to 8"),
        ({"num_images": 2}, "seeds", "2 images"),
        ({"prompt": "ü" * 51}, "prompt", "at most 100"),
        ({"negative_prompt": "x" * 101}, "negative_prompt", "at most 100"),
    ],
)
def test_what_is_not_served_is_refused(changes: dict[str, Any], field: str, limit: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_request(make_request(**changes), make_model())
    assert refusal.value.field == field
    assert limit in refusal.value.message
    assert len(refusal.value.message) < 200


def test_listed_steps_are_the_only_ones() -> None:
    limits = make_model().model_dump(mode="json")["limits"] | {"steps_served": [4, 10]}
    model = make_model(limits=limits)
    assert check_request(make_request(steps=4), model)
    with pytest.raises(InvalidRequest, match="steps 5 is not served; choose one of 4, 10"):
        check_request(make_request(steps=5), model)


def test_another_model_is_refused() -> None:
    with pytest.raises(UnknownModel, match="this group serves small"):
        check_request(make_request(model="large"), make_model())
