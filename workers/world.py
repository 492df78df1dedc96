"""One rank's membership of its world: torch's process group, the control channels and the model's part on this rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from workers.batch import BatchRunner
from workers.compiles import Compiles, CompileTracker
from workers.control import ControlChannel
from workers.device_lock import acquire_device
from workers.devices import device_named
from workers.families import load_family
from workers.model_file import ModelFile, Placement
from workers.settings import GroupSettings
from workers.torch_logs import adopt_torch_logs


@dataclass
class World:
    """What a rank needs to compute together with the others."""

    warming: ControlChannel
    """For warm-up: as patient as compiling is slow."""
    serving: ControlChannel
    """For everything after it."""
    runner: BatchRunner
    """Computes this rank's part of a batch."""


def join_world(
    settings: GroupSettings,
    model: ModelFile,
    on_compile: Callable[[str, str, Compiles], None] = lambda component, bucket, compiles: None,
) -> World:
    """Meet the other ranks, as the launcher's environment says where, and load this rank's part of the model.

    Args:
        settings: Of the group.
        model: What to load.
        on_compile: Told component, bucket and extent of what is compiled on this rank.

    Raises:
        DeviceBusy: if another process keeps this rank's device.
    """
    adopt_torch_logs()
    device = device_named(settings.device)
    dist.init_process_group(device.process_group_backend, timeout=timedelta(seconds=settings.loading_timeout_seconds))
    warming = ControlChannel(settings.loading_timeout_seconds)
    serving = ControlChannel(settings.control_timeout_seconds)
    acquire_device(device, int(os.environ["LOCAL_RANK"]), settings.device_timeout_seconds)
    mesh = None
    if model.placement is Placement.TENSOR_PARALLEL:
        mesh = init_device_mesh(device.name, (dist.get_world_size(),))
    compiles = CompileTracker(device.programs, on_compile)
    family = load_family(model, device, mesh)
    runner = BatchRunner(
        family,
        device,
        compiles,
        decodes=dist.get_rank() == 0,
        run_ahead_steps=settings.run_ahead_steps,
        prompt_cache_bytes=settings.prompt_cache_bytes,
    )
    return World(warming, serving, runner)
