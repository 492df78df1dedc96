"""Each family's stages make the same image as its diffusers pipeline, bit for bit, and say what was not read."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.computing import (
    SEQUENCE_LENGTH,
    Picture,
    call_plain_pipeline,
    compute,
    denoise,
    load_plain_pipeline,
    load_single,
    start,
)
from workers.families import FAMILIES, Family, NotFinite
from workers.model_file import FamilyName, ModelFile

PICTURES = [
    Picture(width=width, steps=steps, guidance_scale=guidance_scale, seed=seed)
    for width, steps, guidance_scale, seed in itertools.product((64, 96), (1, 4), (1.0, 4.0), (0, 2**64 - 1))
]


@pytest.fixture(scope="module")
def family(tiny_model: Callable[[FamilyName], ModelFile]) -> Callable[[FamilyName], Family]:
    return functools.cache(lambda name: load_single(tiny_model(name)))


@pytest.fixture(scope="module")
def pipeline(tiny_model: Callable[[FamilyName], ModelFile]) -> Callable[[FamilyName], Any]:
    return functools.cache(lambda name: load_plain_pipeline(tiny_model(name)))


@pytest.mark.parametrize("picture", PICTURES, ids=str)
@pytest.mark.parametrize("name", FamilyName)
def test_equals_the_pipeline_bit_for_bit(
    name: FamilyName, picture: Picture, family: Callable[..., Family], pipeline: Callable[..., Any]
) -> None:
    latents, pixels = compute(family(name), [picture])
    assert torch.equal(latents, call_plain_pipeline(pipeline(name), picture, "latent"))
    assert np.array_equal(pixels[0], call_plain_pipeline(pipeline(name), picture))


@pytest.mark.parametrize("name", FamilyName)
def test_equals_the_pipeline_in_bfloat16(name: FamilyName, tiny_model: Callable[..., ModelFile]) -> None:
    model, picture = tiny_model(name), Picture(steps=4)
    latents, pixels = compute(load_single(model, dtype="bfloat16"), [picture])
    pipeline = load_plain_pipeline(model, torch.bfloat16)
    assert latents.dtype == torch.bfloat16
    assert torch.equal(latents, call_plain_pipeline(pipeline, picture, "latent"))
    assert np.array_equal(pixels[0], call_plain_pipeline(pipeline, picture))


def test_negative_prompt_equals_the_pipelines(family: Callable[..., Family], pipeline: Callable[..., Any]) -> None:
    picture = Picture(negative_prompt="blurry, dark", guidance_scale=7.0)
    _, pixels = compute(family(FamilyName.SD3), [picture])
    assert np.array_equal(pixels[0], call_plain_pipeline(pipeline(FamilyName.SD3), picture))
    _, without = compute(family(FamilyName.SD3), [Picture(guidance_scale=7.0)])
    assert not np.array_equal(pixels, without)


def test_guidance_pass_is_sd3s_above_one(family: Callable[..., Family]) -> None:
    passes = {name: [family(name).uses_guidance_pass(scale) for scale in (0.0, 1.0, 1.001, 7.0)] for name in FamilyName}
    assert passes == {
        FamilyName.FLUX: [False] * 4,
        FamilyName.FLUX2: [False] * 4,
        FamilyName.SD3: [False, False, True, True],
    }
    assert {name for name, kind in FAMILIES.items() if kind.uses_negative_prompt} == {FamilyName.SD3}


def test_a_guided_batch_needs_negatives(family: Callable[..., Family]) -> None:
    sd3 = family(FamilyName.SD3)
    unguided = start(sd3, [Picture(guidance_scale=1.0)])
    assert not unguided.guided
    with pytest.raises(ValueError, match="negative"):
        sd3.start(_one_slot_batch(guidance_scale=7.0), [sd3.encode("a dog", SEQUENCE_LENGTH)], None)


@pytest.mark.parametrize("name", FamilyName)
def test_guidance_used_tells_whether_it_has_an_effect(name: FamilyName, family: Callable[..., Family]) -> None:
    loaded = family(name)
    weak, _ = compute(loaded, [Picture(guidance_scale=2.0)])
    strong, _ = compute(loaded, [Picture(guidance_scale=9.0)])
    assert loaded.guidance_used == (not torch.equal(weak, strong))


@pytest.mark.parametrize("name", FamilyName)
def test_short_prompts_are_read_whole(name: FamilyName, family: Callable[..., Family]) -> None:
    for prompt in ("", "a dog", "犬 🐕\nin the rain"):
        assert family(name).encode(prompt, SEQUENCE_LENGTH).truncated == ()


def test_clip_and_t5_tell_what_they_read(family: Callable[..., Family]) -> None:
    prompt = "a dog in the rain " * 30
    for name, encoders in (
        (FamilyName.FLUX, [("text_encoder (CLIP)", "tokenizer", 77), ("text_encoder_2 (T5)", "tokenizer_2", 64)]),
        (
            FamilyName.SD3,
            [
                ("text_encoder (CLIP)", "tokenizer", 77),
                ("text_encoder_2 (CLIP)", "tokenizer_2", 77),
                ("text_encoder_3 (T5)", "tokenizer_3", 64),
            ],
        ),
    ):
        tokenizers = family(name).pipeline
        tokens = [len(getattr(tokenizers, tokenizer)(prompt)["input_ids"]) for _, tokenizer, _ in encoders]
        assert family(name).encode(prompt, 64).truncated == tuple(
            f"{encoder} read {limit} of {count} tokens"
            for (encoder, _, limit), count in zip(encoders, tokens, strict=True)
        )


def test_flux2_counts_the_prompt_without_its_instructions(family: Callable[..., Family]) -> None:
    flux2 = family(FamilyName.FLUX2)
    tokenizer = flux2.pipeline.tokenizer
    prompt = ("a dog in the rain " * 30).strip()
    turns = [("system", flux2.pipeline.system_message), ("user", prompt)]
    messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    before, after = (len(tokenizer.tokenize(part)) for part in rendered.split(prompt))
    in_prompt = len(tokenizer.tokenize(prompt))
    assert after > 0
    # Where only the template's closing is cut, the prompt is read whole.
    assert flux2.encode(prompt, before + in_prompt).truncated == ()
    for tokens_read in (in_prompt - 1, 1, 0):
        expected = (f"text_encoder (Mistral) read {tokens_read} of {in_prompt} tokens",)
        assert flux2.encode(prompt, before + tokens_read).truncated == expected
    assert flux2.encode(prompt, before - 1).truncated == (f"text_encoder (Mistral) read 0 of {in_prompt} tokens",)


ENCODE_LONG_PROMPTS = """
import sys
from pathlib import Path
from tests.workers.computing import load_plain_pipeline, load_single
from workers.model_file import load_model_file

for file in sys.argv[1:]:
    model = load_model_file(Path(file))
    load_plain_pipeline(model).encode_prompt("zebra " * 300, **({} if model.family == "flux2" else {"prompt_2": None}),
        **({"prompt_3": None} if model.family == "sd3" else {}))
    load_single(model).encode("walrus " * 300, 64)
"""


def test_no_prompt_text_is_logged(tiny_model_file: Callable[[FamilyName], Path]) -> None:
    files = [str(tiny_model_file(name)) for name in FamilyName]
    run = subprocess.run(
        [sys.executable, "-c", ENCODE_LONG_PROMPTS, *files], capture_output=True, text=True, timeout=100, check=True
    )
    assert "zebra" in run.stderr, "the plain pipeline no longer quotes prompts: this test has nothing to find"
    assert "walrus" not in run.stderr + run.stdout


@pytest.mark.parametrize("name", FamilyName)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_no_image(name: FamilyName, value: float, family: Callable[..., Family]) -> None:
    denoising = denoise(family(name), start(family(name), [Picture(), Picture(seed=1)], batch_size=4))
    denoising.latents[1, 0] = value
    with pytest.raises(NotFinite) as raised:
        family(name).decode(denoising)
    assert raised.value.slots == (1,)


@pytest.mark.parametrize("name", FamilyName)
def test_padding_may_be_anything(name: FamilyName, family: Callable[..., Family]) -> None:
    denoising = denoise(family(name), start(family(name), [Picture()], batch_size=2))
    expected = family(name).decode(denoising)
    denoising.latents[1] = float("nan")
    assert np.array_equal(family(name).decode(denoising)[0], expected[0])


def _one_slot_batch(guidance_scale: float) -> Any:
    from pixelpod.v1 import group_pb2

    return group_pb2.RunBatch(
        width=64,
        height=64,
        batch_size=1,
        steps=1,
        guidance_scale=guidance_scale,
        max_sequence_length=SEQUENCE_LENGTH,
        slots=[group_pb2.Slot(prompt="a dog", seed=0)],
    )
