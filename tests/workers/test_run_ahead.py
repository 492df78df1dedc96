"""The host runs ahead of an asynchronous device by a bounded number of steps. A queue stands in for the device."""

from __future__ import annotations

import pytest

from workers.devices import Cpu, Mark
from workers.run_ahead import RunAhead


class QueueDevice(Cpu):
    """Computes a step only when somebody waits for it, or when `compute` says so."""

    def __init__(self) -> None:
        self.dispatched = 0
        self.computed = 0

    def mark(self) -> Mark:
        self.dispatched += 1
        return QueueMark(self, self.dispatched)


class QueueMark:
    def __init__(self, device: QueueDevice, place: int) -> None:
        self._device = device
        self._place = place

    def query(self) -> bool:
        return self._device.computed >= self._place

    def synchronize(self) -> None:
        self._device.computed = max(self._device.computed, self._place)


@pytest.mark.parametrize("limit", [0, 1, 2, 5])
def test_no_more_than_the_limit_is_in_flight(limit: int) -> None:
    device = QueueDevice()
    run_ahead = RunAhead(device, limit)
    for step in range(1, 10):
        run_ahead.step_dispatched()
        assert device.dispatched - device.computed == min(step, limit)
        assert run_ahead.done == device.computed


def test_what_the_device_did_meanwhile_is_noticed_without_waiting() -> None:
    device = QueueDevice()
    run_ahead = RunAhead(device, limit=3)
    run_ahead.step_dispatched()
    assert run_ahead.done == 0
    device.computed = 1
    run_ahead.step_dispatched()
    assert run_ahead.done == 1
    assert device.computed == 1


def test_after_the_last_step_nothing_is_in_flight() -> None:
    device = QueueDevice()
    run_ahead = RunAhead(device, limit=3)
    run_ahead.step_dispatched()
    run_ahead.last_step_dispatched()
    assert run_ahead.done == device.computed == 2


def test_the_cpu_is_never_behind() -> None:
    run_ahead = RunAhead(Cpu(), limit=3)
    for step in range(1, 5):
        run_ahead.step_dispatched()
        assert run_ahead.done == step


def test_an_error_of_the_device_is_raised_where_the_host_waits() -> None:
    class Broken(QueueMark):
        def synchronize(self) -> None:
            raise RuntimeError("device error")

    device = QueueDevice()
    device.mark = lambda: Broken(device, 1)  # type: ignore[method-assign]
    run_ahead = RunAhead(device, limit=1)
    run_ahead.step_dispatched()
    with pytest.raises(RuntimeError, match="device error"):
        run_ahead.step_dispatched()
