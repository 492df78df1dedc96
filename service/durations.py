"""How long a group computes a request, by the batch times that it measured."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from pixelpod.v1 import group_pb2, images_pb2

Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True)
class _Measured:
    """What a batch of so many images takes."""

    images: int
    step_seconds: float
    beside_seconds: float

    def seconds(self, images: int, steps: int) -> float:
        """Return the seconds of a batch of so many images, taken as proportional where another size was measured."""
        return (self.beside_seconds + steps * self.step_seconds) * images / self.images


class Durations:
    """The times of one group, as its status told them. All are 0 for what was not measured.

    Args:
        status: The group's status.
    """

    def __init__(self, status: group_pb2.GroupStatus) -> None:
        self._batch_sizes: dict[Size, tuple[int, ...]] = {
            (bucket.width, bucket.height): tuple(bucket.batch_sizes) for bucket in status.model.buckets if bucket.warm
        }
        self._measured: dict[Size, list[_Measured]] = defaultdict(list)
        for batch in status.batch_seconds:
            measured = _Measured(batch.batch_size, batch.step_seconds, batch.beside_seconds)
            self._measured[batch.width, batch.height].append(measured)
        self._own_seconds: dict[tuple[int, int, int, int], float] = {}
        """As worked out before: every request asks it of all groups, more than once, and most ask for the same."""

    def warm(self, size: Size) -> bool:
        """Return whether the group is warm for images of this size."""
        return size in self._batch_sizes

    def largest_batch(self, size: Size) -> int:
        """Return how many images of this size a batch holds at most."""
        return self._batch_sizes.get(size, (1,))[-1]

    def own_seconds(self, parameters: images_pb2.ResolvedParameters) -> float:
        """Return how long the request computes by itself: full batches, and a padded rest."""
        asked = (parameters.width, parameters.height, parameters.num_images, parameters.steps)
        seconds = self._own_seconds.get(asked)
        if seconds is None:
            seconds = self._own_seconds[asked] = self._add_batches(parameters)
        return seconds

    def full_seconds(self, parameters: images_pb2.ResolvedParameters) -> float:
        """Return how long the request computes among mates that fill its batches."""
        largest = self._batch_sizes.get((parameters.width, parameters.height), (1,))[-1]
        return -(-parameters.num_images // largest) * self._batch(largest, parameters)

    def share_seconds(self, parameters: images_pb2.ResolvedParameters) -> float:
        """Return the device's time that the request costs where all batches are full."""
        largest = self._batch_sizes.get((parameters.width, parameters.height), (1,))[-1]
        return self._batch(largest, parameters) * parameters.num_images / largest

    def _add_batches(self, parameters: images_pb2.ResolvedParameters) -> float:
        sizes = self._batch_sizes.get((parameters.width, parameters.height), (1,))
        full, rest = divmod(parameters.num_images, sizes[-1])
        seconds = full * self._batch(sizes[-1], parameters)
        if rest:
            seconds += self._batch(next(size for size in sizes if size >= rest), parameters)
        return seconds

    def _batch(self, images: int, parameters: images_pb2.ResolvedParameters) -> float:
        measured = self._measured.get((parameters.width, parameters.height))
        if not measured:
            return 0.0
        nearest = min(measured, key=lambda batch: abs(batch.images - images))
        return nearest.seconds(images, parameters.steps)
