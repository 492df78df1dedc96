"""A device that somebody else holds: tried again, the holder named, never another device instead."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.processes import wait_until
from workers import device_lock
from workers.device_lock import DeviceBusy, acquire_device
from workers.devices import Cpu


class Busy(Cpu):
    """A device that fails some times before it can be had."""

    def __init__(self, failures: int, files: tuple[str, ...] = ("/dev/no-such",)) -> None:
        self.failures = failures
        self.files = files  # type: ignore[misc]  # a class's own elsewhere

    def torch_device(self, local_rank: int) -> torch.device:
        self.failures -= 1
        if self.failures >= 0:
            raise RuntimeError("The device is in use\nand more")
        return super().torch_device(local_rank)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_lock, "RETRY_SECONDS", 0.01)


def test_a_device_that_gets_free_is_had(caplog: pytest.LogCaptureFixture) -> None:
    device = Busy(failures=2)
    acquire_device(device, 0, timeout_seconds=10.0)
    assert device.failures == -1
    assert len(caplog.records) == 2
    assert "can't be had yet: The device is in use; no process of this user has it open" in caplog.text


def test_who_holds_it_is_named_in_the_end(tmp_path: Path) -> None:
    file = tmp_path / "accel0"
    file.touch()
    with file.open() as held, subprocess.Popen(["sleep", "60"], stdin=held) as holder:
        try:
            wait_until(lambda: Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n", 10, lambda: "no sleep")
            with pytest.raises(DeviceBusy, match=rf"held by .*process {holder.pid} \(sleep\)"):
                acquire_device(Busy(10**6, files=(str(tmp_path / "accel"),)), 0, timeout_seconds=0.1)
        finally:
            holder.kill()


def test_another_device_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = Cpu()
    monkeypatch.setattr(device, "name", "tpu", raising=False)
    with pytest.raises(DeviceBusy, match="device tpu was asked for, torch gave cpu"):
        acquire_device(device, 0, timeout_seconds=0.0)
