"""NVIDIA GPUs as a group's devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.devices.base import Device
from workers.model_file import Execution

if TYPE_CHECKING:
    import torch


class Cuda(Device):
    """NVIDIA GPUs, one for each rank of a host."""

    name = "cuda"
    files = ("/dev/nvidia",)
    process_group_backend = "cpu:gloo,cuda:nccl"
    compile_backend = "inductor"

    def prepare_environment(
        self, ranks: int, execution: Execution = Execution.EAGER, nodes: int = 1, node_rank: int = 0
    ) -> dict[str, str]:
        """Hide other accelerators."""
        return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

    def torch_device(self, local_rank: int) -> torch.device:
        """Return the GPU of this number."""
        import torch

        torch.accelerator.set_device_index(local_rank)
        return torch.device("cuda", local_rank)
