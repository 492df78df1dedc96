"""What the group says of itself, ready to be told at any moment: nothing here waits for the device (law 2)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pixelpod.v1 import group_pb2, images_pb2
from workers.descriptor import CONTRACT_VERSION, describe
from workers.model_file import ModelFile
from workers.queue import RequestQueue


class StatusBoard:
    """The group's state, its model's descriptor and its load. Thread-safe.

    Args:
        group: The group's name.
        model: What it serves.
        ranks: Rank processes.
        epoch: This incarnation: Unix milliseconds of rank 0's start.
        queue: Whose load is told.
    """

    def __init__(self, group: str, model: ModelFile, ranks: int, epoch: int, queue: RequestQueue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._on_change: Callable[[], None] = lambda: None
        self._warm: set[tuple[int, int]] = set()
        self._status = group_pb2.GroupStatus(
            group=group,
            epoch=epoch,
            state=group_pb2.GROUP_STATE_LOADING,
            reason="weights are loading",
            model=describe(model),
            ranks=ranks,
            contract_version=CONTRACT_VERSION,
        )

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, on whichever thread, after every change of state."""
        self._on_change = callback

    def enter(self, state: group_pb2.GroupState.ValueType, reason: str = "") -> None:
        """Change the group's state; `reason` tells a person why it is not READY.

        A group that is draining never becomes READY again: the signal that drains it can come just before.
        """
        with self._lock:
            if (self._status.state, state) == (group_pb2.GROUP_STATE_DRAINING, group_pb2.GROUP_STATE_READY):
                return
            self._status.state = state
            self._status.reason = reason
        self._on_change()

    def tell_traits(self, guidance_used: bool, negative_prompt: bool) -> None:
        """Publish what only the loaded model knows."""
        with self._lock:
            self._status.model.limits.guidance_used = guidance_used
            self._status.model.limits.negative_prompt = negative_prompt
        self._on_change()

    def tell_warm(self, width: int, height: int, measured_seconds: float, step_seconds: float) -> None:
        """Publish that a bucket is warm, and how long its smallest batch took at the default steps."""
        with self._lock:
            bucket = self._bucket(width, height)
            bucket.warm = True
            bucket.measured_seconds = measured_seconds
            bucket.step_seconds = step_seconds
            self._warm.add((width, height))
        self._on_change()

    @property
    def state(self) -> group_pb2.GroupState.ValueType:
        """Where the group is in its life."""
        return self._status.state

    def warm(self, width: int, height: int) -> bool:
        """Return whether the bucket of this size in pixels is warm."""
        return (width, height) in self._warm

    def snapshot(self) -> group_pb2.GroupStatus:
        """Return a copy of the status with the load of this moment."""
        load, status = self._queue.load(), group_pb2.GroupStatus()
        with self._lock:
            status.CopyFrom(self._status)
        status.backlog_seconds = load.backlog_seconds
        status.in_flight = load.in_flight
        status.waiting[:], status.computing[:] = self._queue.ids()
        status.batch_seconds.extend(self._queue.estimates.measured())
        status.waiting_images.extend(
            group_pb2.WaitingImages(
                width=key.bucket.width,
                height=key.bucket.height,
                steps=key.steps,
                guidance_scale=key.guidance_scale,
                max_sequence_length=key.max_sequence_length,
                negative_prompt=key.negative_prompt,
                images=images,
            )
            for key, images in self._queue.images_by_key().items()
            if not key.alone
        )
        status.free_slots = load.free_slots if status.state == group_pb2.GROUP_STATE_READY else 0
        return status

    def _bucket(self, width: int, height: int) -> images_pb2.Bucket:
        return next(b for b in self._status.model.buckets if (b.width, b.height) == (width, height))
