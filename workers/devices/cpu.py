"""The CPU as a group's device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from workers.devices.base import Device, Mark
from workers.model_file import Execution

if TYPE_CHECKING:
    import torch


class Cpu(Device):
    """Ranks are processes on the CPU: how everything is tested."""

    name = "cpu"
    process_group_backend = "gloo"
    compile_backend = "inductor"

    def prepare_environment(
        self, ranks: int, execution: Execution = Execution.EAGER, nodes: int = 1, node_rank: int = 0
    ) -> dict[str, str]:
        """Hide accelerators, which diffusers and transformers would pick on their own, and share out the cores."""
        environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "CUDA_VISIBLE_DEVICES": ""}
        if ranks > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // ranks))
        return environment

    def torch_device(self, local_rank: int) -> torch.device:
        """Return the CPU, which all ranks share."""
        import torch

        return torch.device("cpu")

    def synchronize(self) -> None:
        """Return at once: the CPU computes at the call."""

    def mark(self) -> Mark:
        """Return a mark that is passed already: the CPU computes at the call."""
        return _Passed()

    @contextmanager
    def sharding(self) -> Iterator[None]:
        """Let diffusers take a CPU mesh.

        diffusers 0.42 lists the device types it shards on without "cpu", and derives a rank's device from the number
        of accelerators, which is 0 here. Both are put back at the end: sharding happens while loading only.
        """
        import diffusers.hooks.tensor_parallel
        import torch
        from diffusers.models._modeling_parallel import ParallelConfig, TensorParallelConfig

        def resolve_on_cpu(model: Any, config: TensorParallelConfig) -> ParallelConfig:
            resolved = ParallelConfig(tensor_parallel_config=config)
            ranks = torch.distributed.get_world_size()
            resolved.setup(torch.distributed.get_rank(), ranks, torch.device("cpu"), mesh=config.mesh)
            model._parallel_config = resolved
            return resolved

        hooks: Any = diffusers.hooks.tensor_parallel
        model_class: Any = diffusers.ModelMixin
        supported, resolve = hooks._SUPPORTED_TP_DEVICES, model_class._resolve_parallel_config
        hooks._SUPPORTED_TP_DEVICES = (*supported, "cpu")
        model_class._resolve_parallel_config = resolve_on_cpu
        try:
            yield
        finally:
            hooks._SUPPORTED_TP_DEVICES = supported
            model_class._resolve_parallel_config = resolve


class _Passed:
    """The mark of a device that computes at the call."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Return at once."""
