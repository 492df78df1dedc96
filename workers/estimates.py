"""How long batches take, learnt from those that were computed."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass

from pixelpod.v1 import group_pb2
from workers.batching import BatchKey, batch_sizes

_NEWEST_WEIGHT = 0.3
"""Of the newest batch in the running means: a few batches make a change of the machine's speed felt."""


@dataclass(frozen=True)
class BatchSeconds:
    """What a batch of one size takes."""

    step: float
    """One denoising step."""
    beside: float
    """All else: encoding prompts and decoding."""

    def total(self, steps: int) -> float:
        """Return the seconds of a batch of so many steps."""
        return self.beside + steps * self.step


class Estimates:
    """Running means for each bucket and batch size. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured: dict[tuple[int, int], dict[int, BatchSeconds]] = defaultdict(dict)
        """By width and height in pixels, then by batch size."""

    def observe(self, batch: group_pb2.RunBatch, step_seconds: float, beside_seconds: float) -> None:
        """Learn from a computed batch."""
        with self._lock:
            sizes = self._measured[batch.width, batch.height]
            old = sizes.get(batch.batch_size)
            weight = 1.0 if old is None else _NEWEST_WEIGHT
            old = old or BatchSeconds(0.0, 0.0)
            sizes[batch.batch_size] = BatchSeconds(
                step=weight * step_seconds + (1 - weight) * old.step,
                beside=weight * beside_seconds + (1 - weight) * old.beside,
            )

    def batch(self, width: int, height: int, batch_size: int) -> BatchSeconds:
        """Return what a batch of this shape takes; zeros while nothing of the bucket was measured.

        A size that was not computed yet is taken as proportional to the nearest one that was: true of a busy device,
        and too long for others.
        """
        with self._lock:
            sizes = self._measured.get((width, height))
            if sizes is None:
                return BatchSeconds(0.0, 0.0)
            if batch_size in sizes:
                return sizes[batch_size]
            nearest = min(sizes, key=lambda size: abs(size - batch_size))
            measured = sizes[nearest]
        factor = batch_size / nearest
        return BatchSeconds(measured.step * factor, measured.beside * factor)

    def measured(self) -> list[group_pb2.BatchSeconds]:
        """Return all running means."""
        with self._lock:
            return [
                group_pb2.BatchSeconds(
                    width=width,
                    height=height,
                    batch_size=batch_size,
                    step_seconds=seconds.step,
                    beside_seconds=seconds.beside,
                )
                for (width, height), sizes in self._measured.items()
                for batch_size, seconds in sizes.items()
            ]

    def seconds(self, key: BatchKey, images: int) -> float:
        """Return how long so many images of this key take, in as few batches as can be."""
        width, height = key.bucket.width, key.bucket.height
        return sum(self.batch(width, height, size).total(key.steps) for size in batch_sizes(images, key.bucket))
