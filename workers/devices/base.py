"""What a group asks of a kind of accelerator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from workers.errors import ModelRefused
from workers.model_file import Execution, ModelFile

if TYPE_CHECKING:
    import torch


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
