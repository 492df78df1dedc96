"""The only place where cpu, tpu and cuda differ (law 10): everything else is one code path on all of them.

Importing this module does not import torch, so that a launcher can prepare the environment of its ranks first.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from workers.errors import ModelRefused
from workers.model_file import Execution, ModelFile
from workers.tpu_launch import tpu_environment

if TYPE_CHECKING:
    import torch

    from workers.tpu_compile import OverlappedCompiles


class Mark(Protocol):
    """A place in the stream of work that was dispatched to a device."""

    def query(self) -> bool:
        """Tell whether everything before it was computed."""

    def synchronize(self) -> None:
        """Wait until everything before it was computed. Raises what went wrong in computing it."""


@dataclass(frozen=True)
class Programs:
    """What a device's own compiler made since the process started, beside or within torch.compile's graphs."""

    compiled: int = 0
    cached: int = 0
    """Found in a cache that outlives the process. On an asynchronous device, for a moment, also those compiling."""
    seconds: float = 0.0
    """Of compiling."""


class Device(ABC):
    """A kind of accelerator, as a group uses it: one device for each rank."""

    name: ClassVar[str]
    """As in the group's settings, and as torch and its device meshes call it."""
    process_group_backend: ClassVar[str]
    """For torch.distributed.init_process_group. Gloo is always part of it: control messages lie on the CPU."""
    compile_backend: ClassVar[str]
    """For torch.compile."""
    files: ClassVar[tuple[str, ...]] = ()
    """Where files of the operating system that stand for such devices begin."""
    can_fuse: ClassVar[bool] = False
    """Whether execution `fused` exists here."""
    can_overlap_compiles: ClassVar[bool] = False
    """Whether `compile` can leave graphs to the compiler and go on."""

    def verify(self, model: ModelFile) -> None:
        """Check that this device can run the model as its file asks.

        Raises:
            ModelRefused: if it can't.
        """
        if model.execution is Execution.FUSED and not self.can_fuse:
            raise ModelRefused(f"model {model.name}: execution fused needs device tpu; on {self.name} use eager")

    @abstractmethod
    def prepare_environment(
        self, ranks: int, execution: Execution = Execution.EAGER, nodes: int = 1, node_rank: int = 0
    ) -> dict[str, str]:
        """Return the environment variables that rank processes need before they start.

        Args:
            ranks: Rank processes on this host.
            execution: How the model's operators run.
            nodes: Hosts of the group.
            node_rank: The number of this host.

        Raises:
            ModelRefused: if this host can't run so many ranks.
        """

    def cache_environment(self, folder: Path) -> dict[str, str]:
        """Return the environment variables that keep compiled programs in `folder`, for the next start.

        Several groups may share one: what is in it is found by content and version.
        """
        return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "torch")}

    @abstractmethod
    def torch_device(self, local_rank: int) -> torch.device:
        """Return the device of the rank with this number on its host, and make it the process's current one."""

    def synchronize(self) -> None:
        """Wait until everything dispatched to the device has been computed."""
        import torch

        torch.accelerator.synchronize()

    def mark(self) -> Mark:
        """Mark the end of what was dispatched to the device so far."""
        import torch

        event = torch.Event(device=self.name)
        event.record()
        return event

    def programs(self) -> Programs | None:
        """Return what the device's compiler made so far; None where it does not count.

        It can lag behind what was dispatched, until `synchronize`.
        """
        return None

    def compile(self, function: Callable[..., Any], overlapped: bool = False) -> Callable[..., Any]:
        """Return `function` compiled to one graph for each shape of its arguments.

        Args:
            function: A forward method.
            overlapped: Its graphs can be submitted first and waited for later: see `submit_graphs`.
        """
        import torch

        return torch.compile(function, backend=self.compile_backend, fullgraph=True, dynamic=False)

    def submit_graphs(self, calls: Iterable[Callable[[], object]]) -> None:
        """Make calls that end as soon as they meet a new graph of an `overlapped` function, then compile all at once.

        Only for a device that `can_overlap_compiles`.

        Raises:
            Exception: of a call, or what the compiler says about the first graph that it can't compile.
        """
        raise NotImplementedError(f"{self.name} compiles one graph after the other")

    def out_of_memory(self, error: Exception) -> bool:
        """Tell whether an error says that memory was full. XLA's runtime says so by name only."""
        import torch

        return isinstance(error, torch.OutOfMemoryError | MemoryError) or "RESOURCE_EXHAUSTED" in str(error)

    @contextmanager
    def sharding(self) -> Iterator[None]:
        """Within this context diffusers shards models on a mesh of this device."""
        yield

    def adapt(self, pipeline: Any) -> None:  # noqa: B027 -- most devices have nothing to adapt
        """Change in place what this device can't run of a loaded diffusers pipeline."""


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
        from workers.tpu_compile import OverlappedCompiles

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


_DEVICES: dict[str, type[Device]] = {device.name: device for device in (Cpu, Tpu, Cuda)}


def device_named(name: str) -> Device:
    """Return the device of this name: "cpu", "tpu" or "cuda".

    Raises:
        KeyError: for any other name.
    """
    return _DEVICES[name]()


def _contiguous_input(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (inputs[0].contiguous(), *inputs[1:])


class _Passed:
    """The mark of a device that computes at the call."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Return at once."""
