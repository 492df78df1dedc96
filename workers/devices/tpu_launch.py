"""What rank processes on TPU find in their environment, by whatever the installed torch_tpu offers for it.

Only workers.devices imports this (law 10).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec

from workers.errors import ModelRefused

SUPPORTED = "0.2 and later (torch.tpu.distributed.set_tpu_launch_env), and older ones that have the launch wrappers"
"""The versions of torch_tpu that a launcher can use."""

_WRAPPERS = "torch_tpu._internal.distributed.launchers"
"""Modules of older versions: each prints the environment as shell assignments when it runs."""

_WRAPPER_SECONDS = 300.0
_ADDRESSES = "TORCH_TPU_SLICEBUILDER_ADDRESSES"
_TOPOLOGY = "TORCH_TPU_TOPOLOGY"


def tpu_environment(ranks: int, nodes: int, node_rank: int) -> dict[str, str]:
    """Return the variables that tell ranks their slice's topology and addresses; none that is set already.

    Args:
        ranks: Rank processes on this host.
        nodes: Hosts of the group. Several need TORCH_TPU_TOPOLOGY, and TPU_WORKER_HOSTNAMES, which lists them in the
            order of their numbers.
        node_rank: The number of this host.

    Raises:
        ModelRefused: if torch_tpu is missing or of an unknown kind, or finds no chips that so many ranks can use.
    """
    try:
        import torch_tpu  # noqa: F401 -- it makes torch.tpu
    except ImportError as error:
        raise ModelRefused("device tpu needs torch_tpu: pip install 'pixelpod[tpu]'") from error
    numbers = {"NNODES": str(nodes), "NODE_RANK": str(node_rank)} if nodes > 1 else {}
    for name, number in numbers.items():
        if os.environ.get(name, number) != number:
            raise ModelRefused(f"device tpu: {name} is {os.environ[name]}, but the group's settings say {number}")
    if nodes > 1 and _TOPOLOGY not in os.environ:
        raise ModelRefused(
            f"device tpu: several hosts need {_TOPOLOGY}, the mesh of the whole slice, such as 4,4,1; "
            "torch_tpu can only find out what this host has"
        )
    wrapper = f"{_WRAPPERS}.{'multihost_wrapper' if nodes > 1 else 'singlehost_wrapper'}"
    if _has_launch_function():
        found = _from_function(ranks, nodes, numbers)
    elif _exists(wrapper):
        found = _from_wrapper(wrapper, ranks * nodes, numbers)
    else:
        raise ModelRefused(f"device tpu: torch_tpu {_version()} has no way to launch ranks; supported are {SUPPORTED}")
    return {name: value for name, value in found.items() if name not in os.environ}


def _has_launch_function() -> bool:
    try:
        from torch.tpu.distributed import set_tpu_launch_env  # type: ignore[import-not-found]  # noqa: F401 -- see above
    except ImportError:
        return False
    return True


def _from_function(ranks: int, nodes: int, numbers: dict[str, str]) -> dict[str, str]:
    """Have torch_tpu set the variables of this process, and take them back."""
    from torch.tpu.distributed import set_tpu_launch_env

    before = dict(os.environ)
    os.environ.update(numbers)
    try:
        set_tpu_launch_env(nnodes=nodes, nproc_per_node=ranks)
        return {name: value for name, value in os.environ.items() if name not in before}
    except (ValueError, RuntimeError) as error:
        raise ModelRefused(f"device tpu: this host can't run {ranks} ranks: {error}") from error
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]


def _from_wrapper(module: str, world_size: int, numbers: dict[str, str]) -> dict[str, str]:
    """Run an older version's wrapper, which knows all chips of a host but not the number of ranks."""
    command = [sys.executable, "-m", module]
    try:
        result = subprocess.run(
            command, env={**os.environ, **numbers}, capture_output=True, text=True, timeout=_WRAPPER_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ModelRefused(f"device tpu: {module} failed: {reason}") from error
    except subprocess.TimeoutExpired as error:
        raise ModelRefused(f"device tpu: {module} took more than {_WRAPPER_SECONDS:.0f} s") from error
    assignments = dict(word.split("=", 1) for word in shlex.split(result.stdout) if "=" in word)
    # The agent gives each rank its own WORLD_SIZE.
    found = numbers | {name: value for name, value in assignments.items() if name != "WORLD_SIZE"}
    addresses = os.environ.get(_ADDRESSES) or found.get(_ADDRESSES, "")
    chips = len(addresses.split(",")) if addresses else 0
    if chips != world_size:
        raise ModelRefused(
            f"device tpu: torch_tpu {_version()} prepares all {chips} devices, but the group has {world_size} ranks; "
            f"give --ranks for every device, or set {_ADDRESSES} and {_TOPOLOGY}"
        )
    return found


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def _version() -> str:
    try:
        return metadata.version("torch_tpu")
    except metadata.PackageNotFoundError:
        return "of unknown version"
