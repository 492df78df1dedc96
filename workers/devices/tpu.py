"""Google TPUs as a group's devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workers.devices.base import Device, Programs
from workers.devices.tpu_launch import tpu_environment
from workers.model_file import Execution

if TYPE_CHECKING:
    import torch

    from workers.devices.tpu_compile import OverlappedCompiles


class Tpu(Device):
    """Google TPU through torch_tpu, which gives each process one chip."""

    name = "tpu"
    process_group_backend = "cpu:gloo,tpu:tpu_dist"
    compile_backend = "tpu"
    files = ("/dev/accel", "/dev/vfio/")
    can_fuse = True
    can_overlap_compiles = True
    _programs = Programs()
    _compiling = False

    def prepare_environment(
        self, ranks: int, execution: Execution = Execution.EAGER, nodes: int = 1, node_rank: int = 0
    ) -> dict[str, str]:
        """Return the slice's topology and addresses as torch_tpu finds them on this host."""
        environment = tpu_environment(ranks, nodes, node_rank)
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"  # whatever the launcher's own says
        if execution is Execution.FUSED:
            environment["TORCH_TPU_DEFER_AND_FUSE"] = "1"
        return environment

    def cache_environment(self, folder: Path) -> dict[str, str]:
        """Keep torch's traced graphs, and the programs that torch_tpu compiled of them (its tier-3 cache)."""
        return {
            **super().cache_environment(folder),
            "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": str(folder / "torch_tpu"),
            # By default torch_tpu also compiles each program that it reads there, and takes what comes first.
            "TORCH_TPU_INTERNAL_TIER3_COMPILATION_CACHE_LOCAL_BACKUP_TASK": "0",
        }

    def torch_device(self, local_rank: int) -> torch.device:
        """Return the process's one chip: every rank sees it as the current device."""
        import torch

        return torch.device("tpu", torch.accelerator.current_device_index())

    @cached_property
    def _overlapped(self) -> OverlappedCompiles:
        from workers.devices.tpu_compile import OverlappedCompiles

        return OverlappedCompiles()

    def compile(self, function: Callable[..., Any], overlapped: bool = False) -> Callable[..., Any]:
        """See `Device.compile`."""
        return self._overlapped.compile(function) if overlapped else super().compile(function)

    def submit_graphs(self, calls: Iterable[Callable[[], object]]) -> None:
        """See `Device.submit_graphs`."""
        self._overlapped.submit(calls)

    def programs(self) -> Programs:
        """Return torch_tpu's counters: each operator of execution `eager` is a program, and so is a graph.

        `num_compilations` is true only without the task that `cache_environment` turns off: it counts its compiles too.
        """
        import torch

        module: Any = torch.tpu  # type: ignore[attr-defined]  # torch_tpu makes it
        stats = module._get_cache_stats()
        compiled, cached = stats.num_compilations, module._get_cache_misses() - stats.num_compilations
        if self._compiling or (compiled, cached) != (self._programs.compiled, self._programs.cached):
            # Not for each step: it takes half a millisecond.
            seconds = [entry.compilation_duration.total_seconds() for entry in stats.per_entry_stats]
            self._programs = Programs(compiled, cached, sum(seconds))
            self._compiling = compiled > sum(each > 0 for each in seconds)
        return self._programs

    def adapt(self, pipeline: Any) -> None:
        """Make the VAE's group norms read contiguous memory.

        torch_tpu 0.2 fails on the views that the decoder hands to them at batch sizes above 1.
        """
        import torch

        for module in pipeline.vae.modules():
            if isinstance(module, torch.nn.GroupNorm):
                module.register_forward_pre_hook(_contiguous_input)


def _contiguous_input(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (inputs[0].contiguous(), *inputs[1:])
