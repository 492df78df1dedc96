"""Real processes for tests: started, awaited by their health, stopped, and never left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Process:
    """A process under test, with its log and all that it started. Use `start`."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], log_file: Path) -> None:
        self._log_file = log_file
        with log_file.open("wb") as log:
            self._popen = subprocess.Popen(
                argv, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._process = psutil.Process(self._popen.pid)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def ended(self) -> bool:
        return self._popen.poll() is not None

    @property
    def log(self) -> str:
        """All that it and its children wrote to standard output and error."""
        return self._log_file.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        """Return its living descendants."""
        try:
            return self._process.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def wait(self, seconds: float) -> int:
        """Return the exit code; fail with the log if there is none in time."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.log}") from None

    def stop(self, seconds: float = 10.0, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it, and return its exit code once it and all that it started are gone; fail if that takes longer."""
        until = time.monotonic() + seconds
        children = self.children()
        self.send(number)
        code = self.wait(seconds)
        _, alive = psutil.wait_procs(children, timeout=max(0.0, until - time.monotonic()))
        assert not alive, f"left behind {seconds} s after {number.name}: {alive}\n{self.log}"
        return code

    def kill_all(self) -> None:
        """End it and all that it started, whatever state they are in."""
        processes = [*self.children(), self._process]
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._popen.wait(10)
        psutil.wait_procs(processes, timeout=10)


@contextmanager
def start(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Process]:
    """Run a command within the context. What of it still runs at the end is killed.

    Args:
        argv: The command.
        environment: Variables beside those of this process.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = Process(argv, environment or {}, Path(folder) / "log")
        try:
            yield process
        finally:
            process.kill_all()


def free_address() -> str:
    """Return a loopback address that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
"""Of a server that is not there, hangs, or stops."""


def health_of(address: str, service: str = "") -> int | None:
    """Return what a server says of its health now; None where no server answers."""
    with grpc.insecure_channel(address) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=2.0).status)
        except grpc.RpcError as error:
            if error.code() in _NO_ANSWER:
                return None
            raise


def wait_serving(address: str, seconds: float = 60.0, process: Process | None = None) -> None:
    """Wait until the server at `address` says SERVING; fail if that takes longer, or if its `process` ends before."""

    def complaint() -> str:
        return f"{address} does not serve:\n{process.log if process else ''}"

    def serving() -> bool:
        assert process is None or not process.ended, complaint()
        return health_of(address) == SERVING

    wait_until(serving, seconds, complaint)


def wait_not_serving(address: str) -> None:
    """Wait until the server at `address` says NOT_SERVING."""
    wait_until(lambda: health_of(address) == NOT_SERVING, 10.0, lambda: f"{address} does not say NOT_SERVING")


def wait_until(condition: Callable[[], bool], seconds: float, complaint: Callable[[], str]) -> None:
    """Look every 50 ms until `condition` holds; fail with `complaint` if it does not within `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, complaint()
        time.sleep(0.05)
