"""How far a request is: its denoising steps, over all of its batches."""

from __future__ import annotations

import time

from pixelpod.v1 import group_pb2
from workers.batching import batch_sizes
from workers.estimates import Estimates
from workers.request import AcceptedRequest


class Progress:
    """Tells a request's caller, and the queue, how far its batches are.

    Args:
        request: Whose steps these are.
        estimates: Of the batches that did not begin.
    """

    def __init__(self, request: AcceptedRequest, estimates: Estimates) -> None:
        self._request = request
        self._estimates = estimates
        self._done = 0
        self._later_steps = 0
        self._later_seconds = 0.0
        self._began = self._first_done = 0.0

    def batch_begins(self, batch: group_pb2.RunBatch) -> None:
        """Note that a batch with images of the request begins now."""
        key, images = self._request.key, self._request.images - self._request.taken
        self._later_steps = key.steps * len(batch_sizes(images, key.bucket))
        self._later_seconds = self._estimates.seconds(key, images)
        now = self._estimates.batch(batch.width, batch.height, batch.batch_size).total(batch.steps)
        self._request.batch_seconds_left = now
        self._began = time.monotonic()

    def step_done(self, step: int) -> None:
        """Note that the batch has done this step, counted from 1, and tell the caller."""
        now, steps = time.monotonic(), self._request.key.steps
        if step == 1:
            # The text encoders' time is within; later steps tell better.
            seconds_a_step, self._first_done = now - self._began, now
        else:
            seconds_a_step = (now - self._first_done) / (step - 1)
        left = seconds_a_step * (steps - step)
        self._request.batch_seconds_left = left
        self._request.seconds_left = left + self._later_seconds
        self._request.post_progress(self._done + step, self._done + steps + self._later_steps)

    def batch_done(self) -> None:
        """Note that the batch was computed."""
        self._done += self._request.key.steps
        self._request.batch_seconds_left = 0.0
        self._request.seconds_left = self._later_seconds
