"""The noise schedule of one batch, as plain numbers in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler


@dataclass(frozen=True)
class Schedule:
    """When each denoising step happens and how much noise it removes."""

    timesteps: Sequence[float]
    """The transformer's time at each step, from 1000 down."""
    sigma_deltas: Sequence[float]
    """Next sigma - sigma at each step: below 0."""


def lay_out_schedule(scheduler_config: Any, steps: int, **arguments: Any) -> Schedule:
    """Return the schedule that a pipeline would make.

    Args:
        scheduler_config: Of the pipeline's own scheduler, which is not touched: schedulers hold the state of a run.
        steps: Denoising steps.
        arguments: What the family's pipeline passes to `set_timesteps` besides.
    """
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(scheduler_config)
    scheduler.set_timesteps(num_inference_steps=steps, device="cpu", **arguments)
    return Schedule(scheduler.timesteps.tolist(), scheduler.sigmas.diff().tolist())
