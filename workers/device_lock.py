"""Getting hold of the accelerator: one process has it at a time, and a killed one may hold it for a moment more."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from workers.devices import Device

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class DeviceBusy(Exception):
    """The accelerator could not be had in time. The message names who holds it."""


def acquire_device(device: Device, local_rank: int, timeout_seconds: float) -> None:
    """Make the first use of this rank's device, and try again until it works.

    Args:
        device: Which kind.
        local_rank: The rank's number on this host.
        timeout_seconds: For how long to try.

    Raises:
        DeviceBusy: if it can't be had until then, or if torch gave another device than was asked for.
    """
    until = time.monotonic() + timeout_seconds
    while True:
        try:
            got = torch.zeros(1, device=device.torch_device(local_rank)).device
            break
        except RuntimeError as error:
            reason = f"{str(error).strip().splitlines()[0]}; {_holders(device.files)}"
            if time.monotonic() + RETRY_SECONDS > until:
                raise DeviceBusy(f"device {device.name} can't be had: {reason}") from error
            logger.warning("device %s can't be had yet: %s", device.name, reason)
        time.sleep(RETRY_SECONDS)
    if got.type != device.name:
        raise DeviceBusy(f"device {device.name} was asked for, torch gave {got}")


def _holders(files: Sequence[str]) -> str:
    """Name the processes that have one of these files open, or one below."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = str(link.readlink())
        except OSError:  # it ended, or belongs to another user
            continue
        if target.startswith(tuple(files)):
            found.add(int(link.parts[2]))
    if not found:
        return "no process of this user has it open"
    return "held by " + ", ".join(f"process {pid} ({_name(pid)})" for pid in sorted(found))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "ended"
