"""A two-rank group under fire: ranks are killed, stopped and made to raise while callers keep asking.

No call hangs, each ends with one status, and every image that comes is the one that a quiet group draws, bit for bit.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil
import pytest

from tests.e2e.groups import Group, images_of, pixels_of, request, running, write_quick_model
from tests.e2e.processes import SERVING, health_of, wait_serving, wait_until
from tests.events import events_of
from tests.faults.codes import FAULTY_ENVIRONMENT, Fault

READY_SECONDS = 90.0
CALL_SECONDS = 60.0
CALLERS = 6
WISHES = [(f"animal number {number}", number, 3 + number % 3) for number in range(9)]
"""Prompt, seed and steps of what is asked for."""

SETTINGS = {
    "max_restarts": 100,
    "liveness_timeout_seconds": 1.0,
    "loading_liveness_timeout_seconds": 10.0,
    "stall_floor_seconds": 5.0,
    "heartbeat_seconds": 0.5,
}


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a deterministic model: whatever is computed together, an image is the same."""
    return write_quick_model(tmp_path_factory.mktemp("flux2"), batch_size=4, deterministic=True)


@dataclass
class Callers:
    """Callers that ask until enough was asked."""

    group: Group
    expected: list[bytes]
    left: int
    draw: random.Random
    ended: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask_until_done(self) -> None:
        while (number := self._next()) is not None:
            if number < 0:
                code = self._ask("a fault", Fault(-number).seed, 3, expected=b"none")
            else:
                code = self._ask(*WISHES[number], expected=self.expected[number])
            with self.lock:
                self.ended[code] += 1
            if health_of(self.group.address) != SERVING:
                wait_serving(self.group.address, READY_SECONDS, self.group.process)

    def _next(self) -> int | None:
        """Return the number of a wish, or a negative number for a fault; None when enough was asked."""
        with self.lock:
            if self.left == 0:
                return None
            self.left -= 1
            if self.draw.random() < 0.05:
                return -self.draw.choice([Fault.ALL_RAISE_IN_STEP, Fault.RANK_1_RAISES_IN_START, Fault.DECODE_RAISES])
            return self.draw.randrange(len(WISHES))

    def _ask(self, prompt: str, seed: int, steps: int, expected: bytes) -> str:
        """Return how a call ended, by the name of its status."""
        message = request(prompt=prompt, seeds=[seed], steps=steps)
        try:
            events = events_of(self.group.stub.ExecuteStream(message, timeout=CALL_SECONDS))
        except grpc.RpcError as error:
            return str(error.code().name)
        (image,) = images_of(events)
        if pixels_of(image).tobytes() != expected:
            with self.lock:
                self.wrong.append(prompt)
        return "OK"


@contextmanager
def under_fire(group: Group, draw: random.Random, pause_seconds: float) -> Iterator[list[float]]:
    """Kill or stop a rank now and then, at a random moment. Yields the seconds that each recovery took."""
    stop, recoveries = threading.Event(), []

    def fire() -> None:
        while not stop.wait(draw.uniform(0.2, pause_seconds)):
            epoch, started = group.status.epoch, time.monotonic()
            try:
                group.rank(draw.randrange(2)).send_signal(draw.choice([signal.SIGKILL, signal.SIGSTOP]))
            except (StopIteration, psutil.NoSuchProcess):
                continue  # it just broke by a fault
            wait_until(lambda before=epoch: _serves_anew(group, before), READY_SECONDS, lambda: group.process.log)
            recoveries.append(time.monotonic() - started)

    thread = threading.Thread(target=fire)
    thread.start()
    yield recoveries
    stop.set()
    thread.join(READY_SECONDS)
    assert not thread.is_alive()


def _serves_anew(group: Group, epoch: int) -> bool:
    return health_of(group.address) == SERVING and group.status.epoch > epoch


def storm(model_file: Path, requests: int, pause_seconds: float) -> None:
    draw = random.Random(0)
    with running(model_file, environment=FAULTY_ENVIRONMENT, **SETTINGS) as group:
        wait_serving(group.address, READY_SECONDS, group.process)
        expected = []
        for prompt, seed, steps in WISHES:
            (image,) = images_of(group.execute(prompt=prompt, seeds=[seed], steps=steps))
            expected.append(pixels_of(image).tobytes())
        callers = Callers(group, expected, requests, draw)
        with under_fire(group, random.Random(1), pause_seconds) as recoveries, ThreadPoolExecutor(CALLERS) as pool:
            for caller in [pool.submit(callers.ask_until_done) for _ in range(CALLERS)]:
                caller.result()
        wait_serving(group.address, READY_SECONDS, group.process)
        assert callers.wrong == []
        assert callers.ended.total() == requests, "each call has one status"
        assert set(callers.ended) <= {"OK", "UNAVAILABLE", "INTERNAL"}
        assert callers.ended["OK"] > 0
        assert recoveries, "nothing was broken"
        group.wait_idle()
        ordered = sorted(recoveries)
        print(f"{dict(callers.ended)}; {len(ordered)} ranks killed or stopped, serving again after ", end="")
        print(f"{ordered[len(ordered) // 2]:.1f} s (median), {ordered[-1]:.1f} s (worst)")
        assert group.process.stop() == 0


@pytest.mark.timeout(400)
def test_a_short_storm(model_file: Path) -> None:
    storm(model_file, requests=20, pause_seconds=2.0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_long_storm(model_file: Path) -> None:
    storm(model_file, requests=300, pause_seconds=8.0)
