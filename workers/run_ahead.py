"""How far the host may run ahead of the device within the denoise loop.

On an asynchronous device a step returns before it was computed. Waiting for each one leaves the device idle while the
host prepares the next; never waiting makes progress, timings and decisions untrue, since the host then finishes the
loop long before the device. So a bounded number of steps is in flight.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.devices import Device, Mark


class RunAhead:
    """Counts the steps of one batch that the device has really done.

    Args:
        device: Where the steps run.
        limit: Steps that may be in flight when the host goes on; 0 waits for each.
    """

    def __init__(self, device: Device, limit: int) -> None:
        self._device = device
        self._limit = limit
        self._in_flight: deque[Mark] = deque()
        self.done = 0
        """Steps that the device has done, as far as the host knows."""

    def step_dispatched(self) -> None:
        """Note that a step was dispatched, and wait until no more than `limit` are in flight."""
        self._in_flight.append(self._device.mark())
        self._wait(self._limit)

    def last_step_dispatched(self) -> None:
        """Note that the last step was dispatched, and wait for all of them."""
        self._in_flight.append(self._device.mark())
        self._wait(0)

    def _wait(self, limit: int) -> None:
        while self._in_flight and (len(self._in_flight) > limit or self._in_flight[0].query()):
            self._in_flight.popleft().synchronize()
            self.done += 1
