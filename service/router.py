"""The router: which groups can compute a request, and which of them does."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from pixelpod.server.errors import Unavailable
from pixelpod.v1 import images_pb2
from service.group_connection import GroupConnection
from service.sizes import size_text

RETRY_NOT_READY_SECONDS = 5.0
"""Groups that load or warm take a while: seconds from a compile cache, minutes without."""


def ready_groups(groups: Iterable[GroupConnection], model: str) -> list[GroupConnection]:
    """Return the groups that are ready for `model`.

    Raises:
        Unavailable: if there is none. A group that loads does not know all of its model's limits yet, so no request can
            be held to them either.
    """
    of_model = [group for group in groups if group.model is not None and group.model.name == model]
    ready = [group for group in of_model if group.ready]
    if not ready:
        states = ", ".join(sorted({str(group.availability) for group in of_model}))
        raise Unavailable(
            f"no group of model {model} is ready; its groups are: {states}; try again",
            reason="GROUPS_NOT_READY",
            retry_after_seconds=RETRY_NOT_READY_SECONDS,
        )
    return ready


def choose_group(ready: Iterable[GroupConnection], parameters: images_pb2.ResolvedParameters) -> GroupConnection:
    """Return the group of `ready` that is predicted to finish the request first; among equals, one at random.

    Raises:
        Unavailable: if none is warm for the size.
    """
    warm = [group for group in ready if _warm_bucket(group, parameters) is not None]
    if not warm:
        size = size_text(parameters.width, parameters.height)
        raise Unavailable(
            f"no group of the model is warm for {size} yet; try again, or ask for another size",
            reason="BUCKET_NOT_WARM",
            retry_after_seconds=RETRY_NOT_READY_SECONDS,
        )
    finish = {group: (predicted_finish_seconds(group, parameters), group.requests_ahead) for group in warm}
    earliest = min(finish.values())
    return random.choice([group for group in warm if finish[group] == earliest])


def predicted_finish_seconds(group: GroupConnection, parameters: images_pb2.ResolvedParameters) -> float:
    """Return when `group` would be done with the request, in seconds from now."""
    return group.backlog_seconds + predicted_seconds(group, parameters)


def predicted_seconds(group: GroupConnection, parameters: images_pb2.ResolvedParameters) -> float:
    """Return how long `group` computes the request, from its measured times; 0 where nothing was measured.

    A bucket's times are those of its smallest batch; larger batches are taken to cost in proportion.
    """
    bucket = _warm_bucket(group, parameters)
    if bucket is None or group.model is None:
        return 0.0
    other_steps = parameters.steps - group.model.defaults.steps
    seconds = max(0.0, bucket.measured_seconds + bucket.step_seconds * other_steps)
    return seconds * math.ceil(parameters.num_images / bucket.batch_sizes[0])


def _warm_bucket(group: GroupConnection, parameters: images_pb2.ResolvedParameters) -> images_pb2.Bucket | None:
    buckets = group.model.buckets if group.model is not None else ()
    size = (parameters.width, parameters.height)
    return next((bucket for bucket in buckets if bucket.warm and (bucket.width, bucket.height) == size), None)
