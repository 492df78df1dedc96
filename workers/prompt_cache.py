"""What the text encoders made of recent prompts, so that the same prompt with another seed skips them.

Every rank has a cache of its own. They hold the same, since all ranks see the same prompts in the same order: so a
sharded encoder, which needs all ranks, is skipped by all of them or by none.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.families import Conditioning

PromptKey = tuple[str, int]
"""Prompt and max_sequence_length."""


class PromptCache:
    """Keeps what was used last.

    Args:
        limit_bytes: Of embeddings; 0 keeps none.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._kept: OrderedDict[PromptKey, Conditioning] = OrderedDict()

    def get(self, key: PromptKey) -> Conditioning | None:
        """Return what is kept of a prompt, if it is."""
        conditioning = self._kept.get(key)
        if conditioning is not None:
            self._kept.move_to_end(key)
        return conditioning

    def put(self, key: PromptKey, conditioning: Conditioning) -> None:
        """Keep this, and forget what was not used for longest where there is no room."""
        if conditioning.size_bytes > self._limit_bytes:
            return
        self._kept[key] = conditioning
        self._bytes += conditioning.size_bytes
        while self._bytes > self._limit_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.size_bytes
