"""What a caller sees while a request runs."""

from __future__ import annotations

from dataclasses import dataclass

from pixelpod.client.result import Generation


@dataclass(frozen=True)
class Accepted:
    """First: the request is valid and has a place."""

    request_id: str
    """Names the request in answers and logs."""
    position: int
    """How many requests are before it."""
    predicted_seconds: float
    """Seconds until the last image is expected; 0 when nothing was measured yet."""


@dataclass(frozen=True)
class Progress:
    """After a denoising step."""

    step: int
    """Steps done."""
    steps: int
    """Steps in all."""
    seconds_left: float
    """Seconds until done is expected."""


@dataclass(frozen=True)
class Done:
    """Last: every image arrived whole."""

    generation: Generation
    """The result."""


Event = Accepted | Progress | Done
