"""Requests in, images out."""

from __future__ import annotations

import gc
import hashlib
import weakref
from typing import Any

import numpy as np
import pytest

from pixelpod.v1 import images_pb2
from tests.workers.computing import Picture, compute
from tests.workers.leader.leading import PROMPT, Led, answer_to, counted_steps, open_image, steps_done
from workers.families import Family


async def test_images_of_several_batches_come_in_order_with_all_they_tell(led: Led, family: Family) -> None:
    seeds = [11, 0, 2**64 - 1]
    answer = await answer_to(led.put(seeds=seeds, guidance_scale=3.0, negative_prompt="rain"))

    def picture(seed: int) -> Picture:
        return Picture(PROMPT, "rain", seed, steps=2, guidance_scale=3.0)

    _, first = compute(family, [picture(seed) for seed in seeds[:2]])
    _, rest = compute(family, [picture(seeds[2])])
    for file, expected in zip(answer.files, [*first, *rest], strict=True):
        assert (np.asarray(open_image(file)) == expected).all()

    assert answer.steps[-1] == 4, "two batches of two steps"
    done = answer.done
    assert (done.request_id, done.model, done.revision) == ("r-1", "tiny-sd3", "random-0")
    assert (done.group, done.epoch) == ("group-a", 99)
    assert [image.seed for image in done.images] == seeds
    assert [image.sha256 for image in done.images] == [hashlib.sha256(file).hexdigest() for file in answer.files]
    assert open_image(answer.files[2]).text == {
        "prompt": PROMPT,
        "negative_prompt": "rain",
        "seed": str(2**64 - 1),
        "steps": "2",
        "guidance_scale": "3.0",
        "max_sequence_length": "64",
        "size": "64x64",
        "model": "tiny-sd3",
        "revision": "random-0",
    }
    assert led.sample("batch_size_count") == 2
    assert led.sample("batch_size_sum") == 3
    assert led.sample("stage_seconds_count", stage="image_encode") == 3


async def test_what_was_cut_is_told_once(led: Led) -> None:
    long = "very long " * 60
    answer = await answer_to(led.put(prompt=long, negative_prompt=long, guidance_scale=5.0, seeds=[1, 2]))
    fields = [warning.field for warning in answer.done.warnings]
    assert fields.count("prompt") == fields.count("negative_prompt") == 3, "two CLIP encoders and T5"
    assert all(warning.code == images_pb2.WARNING_CODE_PROMPT_TRUNCATED for warning in answer.done.warnings)


async def test_requests_are_computed_together_and_each_gets_its_own_images(led: Led, family: Family) -> None:
    # The first one keeps the device busy while the others arrive.
    first = led.put(steps=7)
    together = [led.put(prompt=f"{number} foxes", seeds=[number]) for number in range(4)]
    await answer_to(first)
    answers = [await answer_to(request) for request in together]
    for number, answer in enumerate(answers):
        picture = Picture(f"{number} foxes", seed=number, steps=2)
        _, expected = compute(family, [picture, Picture()])
        assert (np.asarray(open_image(answer.files[0])) == expected[0]).all()
        assert answer.steps[-1] == 2
    assert led.sample("batch_size_count") == 3
    assert led.sample("batch_size_sum") == 5


async def test_nothing_is_kept_of_requests_that_ended(led: Led) -> None:
    request = led.put(seeds=[1, 2, 3])
    await answer_to(request)
    gone = weakref.ref(request)
    led.queue.leave(request)
    del request
    await answer_to(led.put(steps=1))
    gc.collect()
    assert gone() is None


async def test_one_of_a_batch_that_leaves_changes_nothing_for_its_mates(
    led: Led, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted_steps(family, monkeypatch) as steps:
        first = led.put(steps=7)
        stays, leaves = led.put(prompt="a fox", steps=20), led.put(prompt="a dog", steps=20)
        await answer_to(first)
        await steps_done(leaves, 2)
        leaves.abandon()
        answer = await answer_to(stays)
        assert len(steps) == 27, "the batch went on"
    _, expected = compute(family, [Picture("a fox", seed=3, steps=20), Picture()])
    assert (np.asarray(open_image(answer.files[0])) == expected[0]).all()
    assert led.sample("stage_seconds_count", stage="image_encode") == 2, "that of the one who left is no file"


async def test_a_prompt_is_encoded_once_and_its_images_are_the_same(
    led: Led, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    encode = family.encode

    def count(prompt: str, max_sequence_length: int) -> Any:
        encoded.append(prompt)
        return encode(prompt, max_sequence_length)

    monkeypatch.setattr(family, "encode", count)
    answers = [await answer_to(led.put(prompt="an owl", negative_prompt="sleet", guidance_scale=3.0)) for _ in range(2)]
    assert encoded == ["an owl", "sleet"]
    assert answers[0].done.images[0].sha256 == answers[1].done.images[0].sha256
    assert led.sample("prompts_total", source="encoded") == led.sample("prompts_total", source="cached") == 2
    await answer_to(led.put(prompt="an owl", guidance_scale=1.0, max_sequence_length=128))
    assert encoded == ["an owl", "sleet", "an owl"], "another length is another encoding"
