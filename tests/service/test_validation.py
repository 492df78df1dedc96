"""Validation resolves every default, bounds every parameter, and says what it changed."""

from __future__ import annotations

import math

import pytest

from pixelpod.server.errors import InvalidRequest
from pixelpod.v1 import images_pb2
from service.validation import resolve_request, resolve_request_id
from tests.service.stub_group import tiny_model

NEAREST = images_pb2.SIZE_POLICY_NEAREST
JPEG = images_pb2.OUTPUT_FORMAT_JPEG
PNG = images_pb2.OUTPUT_FORMAT_PNG
SECRET = "a secret garden"

REFUSALS = [
    # fields of the request, the field named, a part of the message
    ({"prompt": ""}, "prompt", "no visible character"),
    ({"prompt": "   "}, "prompt", "no visible character"),
    ({"prompt": "\u200b\u200d\ufeff"}, "prompt", "no visible character"),
    ({"prompt": "x" * 16385}, "prompt", "limit of 16384"),
    ({"prompt": "紅" * 5462}, "prompt", "limit of 16384 bytes"),
    ({"negative_prompt": "x" * 16385}, "negative_prompt", "limit of 16384"),
    ({"width": 1000, "height": 1000}, "width", "nearest sizes are 128x128, 64x64, 96x64"),
    ({"width": 64, "height": 96}, "height", "64x96 is not served"),
    ({"width": 96, "height": 96}, "height", "96x96 is not served"),
    ({"width": 100_000, "height": 10_000}, "width", "100000x10000 is not served"),
    ({"width": 16, "height": 65536}, "width", "16x65536 is not served"),
    ({"width": 2**31 - 1, "height": 2**31 - 1}, "width", "2147483647x2147483647 is not served"),
    ({"width": 0, "height": 64}, "width", "width 0 is below 1"),
    ({"width": 64, "height": 0}, "height", "height 0 is below 1"),
    ({"width": -16, "height": -16}, "width", "width -16 is below 1"),
    ({"width": 64}, "height", "set both"),
    ({"height": 64}, "width", "set both"),
    ({"width": 100_000, "height": 10_000, "size_policy": NEAREST}, "width", "limit of 49152 pixels"),
    ({"width": -1, "height": 64, "size_policy": NEAREST}, "width", "below 1"),
    ({"width": 64, "height": 64, "num_images": 1000}, "num_images", "choose 1 to 4"),
    ({"width": 128, "height": 128, "num_images": 4}, "num_images", "65536 pixels, over the limit of 49152.*at most 3"),
    ({"num_images": 0}, "num_images", "num_images 0 is out of bounds; choose 1 to 4"),
    ({"num_images": 5}, "num_images", "num_images 5"),
    ({"num_images": -(2**31)}, "num_images", "num_images -2147483648"),
    ({"steps": 0}, "steps", "steps 0 is out of bounds; choose 1 to 50"),
    ({"steps": -1}, "steps", "steps -1"),
    ({"steps": 51}, "steps", "steps 51"),
    ({"steps": 2**31 - 1}, "steps", "steps 2147483647"),
    ({"guidance_scale": math.nan}, "guidance_scale", "guidance_scale nan"),
    ({"guidance_scale": math.inf}, "guidance_scale", "guidance_scale inf"),
    ({"guidance_scale": -math.inf}, "guidance_scale", "guidance_scale -inf"),
    ({"guidance_scale": -1}, "guidance_scale", "choose 0.0 to 20.0"),
    ({"guidance_scale": 20.001}, "guidance_scale", "choose 0.0 to 20.0"),
    ({"max_sequence_length": 65}, "max_sequence_length", "choose one of 64, 256"),
    ({"max_sequence_length": 0}, "max_sequence_length", "choose one of 64, 256"),
    ({"quality": 90}, "quality", "does not apply to PNG"),
    ({"output_format": PNG, "quality": 90}, "quality", "does not apply to PNG"),
    ({"output_format": JPEG, "quality": 0}, "quality", "choose 1 to 100"),
    ({"output_format": JPEG, "quality": 101}, "quality", "choose 1 to 100"),
    ({"output_format": 9}, "output_format", "output_format 9 is unknown.*OUTPUT_FORMAT_PNG"),
    ({"size_policy": 9}, "size_policy", "size_policy 9 is unknown"),
    ({"priority": -1}, "priority", "priority -1 is unknown"),
]


@pytest.mark.parametrize(("fields", "field", "message"), REFUSALS, ids=[f"{row[1]}-{row[2]}" for row in REFUSALS])
def test_refused(fields: dict[str, object], field: str, message: str) -> None:
    request = images_pb2.GenerateRequest(**{"prompt": SECRET, **fields})
    with pytest.raises(InvalidRequest, match=message) as refused:
        resolve_request(request, tiny_model())
    assert refused.value.field == field
    assert SECRET not in refused.value.message


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("steps", [1, 50]),
        ("num_images", [1, 4]),
        ("guidance_scale", [0.0, 1.0, 20.0]),
        ("max_sequence_length", [64, 256]),
    ],
)
def test_bounds_are_inclusive(field: str, values: list[float]) -> None:
    for value in values:
        request = images_pb2.GenerateRequest(prompt="x", **{field: value})
        assert getattr(resolve_request(request, tiny_model()).parameters, field) == value


def test_every_default_is_resolved() -> None:
    resolved = resolve_request(images_pb2.GenerateRequest(prompt="x"), tiny_model())
    expected = images_pb2.ResolvedParameters(
        width=64,
        height=64,
        num_images=1,
        steps=4,
        guidance_scale=7.0,
        max_sequence_length=64,
        seeds=resolved.parameters.seeds,
        output_format=PNG,
        quality=0,
        size_policy=images_pb2.SIZE_POLICY_EXACT,
        priority=images_pb2.PRIORITY_NORMAL,
    )
    assert resolved.parameters == expected
    assert len(resolved.parameters.seeds) == 1
    assert not resolved.warnings


def test_prompt_at_the_limit() -> None:
    resolve_request(images_pb2.GenerateRequest(prompt="x" * 16384), tiny_model())


@pytest.mark.parametrize(
    ("seed", "seeds"),
    [(0, [0, 1, 2, 3]), (5, [5, 6, 7, 8]), (2**64 - 2, [2**64 - 2, 2**64 - 1, 0, 1])],
)
def test_given_seed(seed: int, seeds: list[int]) -> None:
    request = images_pb2.GenerateRequest(prompt="x", seed=seed, num_images=4)
    assert list(resolve_request(request, tiny_model()).parameters.seeds) == seeds


def test_drawn_seeds_differ() -> None:
    request = images_pb2.GenerateRequest(prompt="x", num_images=2)
    drawn = [tuple(resolve_request(request, tiny_model()).parameters.seeds) for _ in range(3)]
    assert len(set(drawn)) == 3
    assert all(second == (first + 1) % 2**64 for first, second in drawn)


@pytest.mark.parametrize(("quality", "resolved"), [(None, 90), (1, 1), (100, 100)])
def test_quality_of_jpeg(quality: int | None, resolved: int) -> None:
    request = images_pb2.GenerateRequest(prompt="x", output_format=JPEG, quality=quality)
    assert resolve_request(request, tiny_model()).parameters.quality == resolved


def test_nearest_size_is_served_with_a_warning() -> None:
    request = images_pb2.GenerateRequest(prompt="x", width=16, height=65536, size_policy=NEAREST)
    model = tiny_model(max_pixels=2**21)
    resolved = resolve_request(request, model)
    assert (resolved.parameters.width, resolved.parameters.height) == (128, 128)
    assert [(warning.code, warning.field) for warning in resolved.warnings] == [
        (images_pb2.WARNING_CODE_SIZE_ADJUSTED, "width")
    ]
    assert "128x128 is the nearest size to 16x65536" in resolved.warnings[0].message


def test_nearest_of_a_served_size_is_that_size() -> None:
    request = images_pb2.GenerateRequest(prompt="x", width=96, height=64, size_policy=NEAREST)
    resolved = resolve_request(request, tiny_model())
    assert (resolved.parameters.width, resolved.parameters.height) == (96, 64)
    assert not resolved.warnings


def test_negative_prompt_is_passed_on() -> None:
    resolved = resolve_request(images_pb2.GenerateRequest(prompt="x", negative_prompt="y"), tiny_model())
    assert resolved.parameters.negative_prompt == "y"
    assert not resolved.warnings


def test_negative_prompt_is_refused_where_unused() -> None:
    request = images_pb2.GenerateRequest(prompt="x", negative_prompt=SECRET)
    with pytest.raises(InvalidRequest, match="takes no negative_prompt") as refused:
        resolve_request(request, tiny_model(negative_prompt=False))
    assert refused.value.field == "negative_prompt"
    assert SECRET not in refused.value.message


@pytest.mark.parametrize(("guidance_scale", "warned"), [(0.0, True), (1.0, True), (1.5, False)])
def test_negative_prompt_without_guidance_is_warned_of(guidance_scale: float, warned: bool) -> None:
    request = images_pb2.GenerateRequest(prompt="x", negative_prompt=SECRET, guidance_scale=guidance_scale)
    warnings = resolve_request(request, tiny_model()).warnings
    codes = [images_pb2.WARNING_CODE_NEGATIVE_PROMPT_IGNORED] if warned else []
    assert [warning.code for warning in warnings] == codes
    assert all(SECRET not in warning.message for warning in warnings)


def test_guidance_is_ignored_with_a_warning() -> None:
    request = images_pb2.GenerateRequest(prompt="x", guidance_scale=3.5)
    resolved = resolve_request(request, tiny_model(guidance_used=False))
    assert [warning.code for warning in resolved.warnings] == [images_pb2.WARNING_CODE_GUIDANCE_IGNORED]
    assert resolved.parameters.guidance_scale == 7.0


def test_guidance_left_out_needs_no_warning() -> None:
    request = images_pb2.GenerateRequest(prompt="x")
    assert not resolve_request(request, tiny_model(guidance_used=False)).warnings


@pytest.mark.parametrize("request_id", ["a", "A-z.0_9:x", "x" * 64])
def test_request_id_is_kept(request_id: str) -> None:
    assert resolve_request_id(images_pb2.GenerateRequest(request_id=request_id)) == request_id


def test_request_id_is_drawn() -> None:
    first, second = (resolve_request_id(images_pb2.GenerateRequest()) for _ in range(2))
    assert first != second
    assert resolve_request_id(images_pb2.GenerateRequest(request_id=first)) == first


@pytest.mark.parametrize("request_id", ["x" * 65, "a b", "a\n", "é", "a/b"])
def test_request_id_is_refused(request_id: str) -> None:
    with pytest.raises(InvalidRequest, match="1 to 64 characters") as refused:
        resolve_request_id(images_pb2.GenerateRequest(request_id=request_id))
    assert refused.value.field == "request_id"
