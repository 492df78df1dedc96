"""Gives each process with this folder in PYTHONPATH an emulated TPU: torch_tpu as it is, on an XLA plugin for the CPU.

Python imports a module of this name at the start of every process. It does nothing until torch_tpu looks for chips,
so that processes which never do so pay nothing. `tests.emulation` builds the environment that points here.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.machinery
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from types import ModuleType

HARDWARE_MODULE = "torch_tpu._internal.utils.hardware"
"""Where torch_tpu counts the chips of the host, the last thing before it loads the plugin."""

ONE_V6E_CHIP = (1, {1: "1,1,1"})
"""What torch_tpu finds on a host with one: the number of chips, and the topology for each number of ranks."""

PJRT_API_CLIENT_CREATE_OFFSET = 120
"""Bytes to PJRT_Client_Create in the plugin's table of functions.

Three words of struct header, two of version, then the functions in the order of xla/pjrt/c/pjrt_c_api.h, each a word;
this one is the eleventh.
"""

PJRT_NAMED_VALUE_INT64 = 1
"""The type tag of whole numbers among a plugin's options."""

CreateFunction = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class NamedValue(ctypes.Structure):
    """PJRT_NamedValue of xla/pjrt/c/pjrt_c_api.h: one option for a plugin."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("int64_value", ctypes.c_int64),
        ("value_size", ctypes.c_size_t),
    )


class CreateArguments(ctypes.Structure):
    """The start of PJRT_Client_Create_Args of xla/pjrt/c/pjrt_c_api.h."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("options", ctypes.c_void_p),
        ("number_of_options", ctypes.c_size_t),
    )


class EmulateAtImport(importlib.machinery.PathFinder):
    """Finds torch_tpu's hardware module as ever, and emulates a TPU once that is loaded."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Wrap the loader of the one module; leave all others to the finders behind this one."""
        if fullname != HARDWARE_MODULE:
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_emulate(module: ModuleType) -> None:
                load(module)
                emulate(module)

            spec.loader.exec_module = load_and_emulate  # type: ignore[method-assign]
        return spec


def emulate(hardware: ModuleType) -> None:
    """Make torch_tpu find one chip, and let the plugin and torch run what the emulated chip can."""
    if os.environ.get("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"):
        keep_shared_memory_apart()
    hardware._scan_pci_tpus = lambda: ONE_V6E_CHIP
    accept_any_options(os.environ["TPU_LIBRARY_PATH"])
    use_plain_attention()


def plugin_path() -> str:
    """Return the plugin's file; its package need not be imported for it."""
    spec = importlib.util.find_spec("lammps_jax_pjrt_cpu")
    if spec is None or spec.origin is None:
        raise ImportError("the emulated TPU needs lammps-jax-pjrt-cpu (pip install --no-deps lammps-jax-pjrt-cpu)")
    return os.path.join(os.path.dirname(spec.origin), "pjrt_c_api_cpu_plugin.so")


def keep_shared_memory_apart() -> None:
    """Give this process its own cache in shared memory, which torch_tpu puts before the one on disk.

    By default the processes of a host share it. But this plugin's executables, as they lie there, run only in the
    process that compiled them.
    """
    name = f"emulated-{os.getpid()}"
    folder = f"/dev/shm/torch_tpu_cache/{name}"
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier process of this number that was killed
    os.environ["TORCH_TPU_TIER2_COMPILATION_CACHE"] = name
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def accept_any_options(plugin: str) -> None:
    """Patch the plugin's create function: it refuses the options that torch_tpu gives to a real TPU."""
    library = ctypes.CDLL(plugin)
    library.GetPjrtApi.restype = ctypes.c_void_p
    slot = ctypes.c_void_p.from_address(library.GetPjrtApi() + PJRT_API_CLIENT_CREATE_OFFSET)
    create = CreateFunction(slot.value)
    name = b"cpu_device_count"
    one_device = NamedValue(ctypes.sizeof(NamedValue), None, name, len(name), PJRT_NAMED_VALUE_INT64, 1, 1)

    @CreateFunction
    def create_one_device(arguments: int) -> int | None:
        options = CreateArguments.from_address(arguments)
        options.options, options.number_of_options = ctypes.addressof(one_device), 1
        created: int | None = create(arguments)
        return created

    slot.value = ctypes.cast(create_one_device, ctypes.c_void_p).value
    keep_alive.extend((library, one_device, create_one_device))


def use_plain_attention() -> None:
    """Let torch compute attention from plain operators: torch_tpu's own is a kernel for real chips only."""
    import torch

    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_math_sdp(True)
    torch._C._set_sdp_use_overrideable(False)


keep_alive: list[object] = []
"""What the plugin points to for the rest of the process."""

# torch_tpu reads this variable as soon as it is imported.
os.environ["TPU_LIBRARY_PATH"] = plugin_path()
sys.meta_path.insert(0, EmulateAtImport)
