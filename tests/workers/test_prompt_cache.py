from __future__ import annotations

import torch

from workers.families import Conditioning
from workers.prompt_cache import PromptCache


def conditioning(numbers: int = 4) -> Conditioning:
    return Conditioning(torch.zeros(1, 1, numbers, dtype=torch.float32))


def test_what_is_kept_comes_back_as_it_was() -> None:
    cache, kept = PromptCache(limit_bytes=1000), conditioning()
    cache.put(("a fox", 64), kept)
    assert cache.get(("a fox", 64)) is kept
    assert cache.get(("a fox", 128)) is None
    assert cache.get(("a dog", 64)) is None


def test_what_was_not_used_for_longest_goes_first() -> None:
    cache = PromptCache(limit_bytes=32)
    cache.put(("a", 1), conditioning())
    cache.put(("b", 1), conditioning())
    assert cache.get(("a", 1)) is not None
    cache.put(("c", 1), conditioning())
    assert [cache.get((text, 1)) is not None for text in "abc"] == [True, False, True]


def test_what_is_larger_than_all_room_is_not_kept() -> None:
    cache = PromptCache(limit_bytes=32)
    cache.put(("a", 1), conditioning())
    cache.put(("b", 1), conditioning(numbers=9))
    assert cache.get(("b", 1)) is None
    assert cache.get(("a", 1)) is not None


def test_pooled_embeddings_count_too() -> None:
    pooled = Conditioning(torch.zeros(1, 1, 4), pooled=torch.zeros(1, 4))
    assert pooled.size_bytes == 32


def test_without_room_nothing_is_kept() -> None:
    cache = PromptCache(limit_bytes=0)
    cache.put(("a", 1), conditioning())
    assert cache.get(("a", 1)) is None
