"""The only place where cpu, tpu and cuda differ (law 10): everything else is one code path on all of them.

Importing this does not import torch, so that a launcher can prepare the environment of its ranks first.
"""

from __future__ import annotations

from workers.devices.base import Device, Mark, Programs
from workers.devices.cpu import Cpu
from workers.devices.cuda import Cuda
from workers.devices.tpu import Tpu

__all__ = ["Device", "Mark", "Programs", "device_named"]

_DEVICES: dict[str, type[Device]] = {device.name: device for device in (Cpu, Tpu, Cuda)}


def device_named(name: str) -> Device:
    """Return the device of this name: "cpu", "tpu" or "cuda".

    Raises:
        KeyError: for any other name.
    """
    return _DEVICES[name]()
