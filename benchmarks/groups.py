"""A group as a process of its own, for benchmarks from a caller's side."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pixelpod.v1 import group_pb2, group_pb2_grpc, images_pb2

READY_SECONDS = 3600.0


@contextmanager
def serving(
    model: Path,
    ranks: int,
    device: str = "cpu",
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[group_pb2_grpc.WorkerGroupStub]:
    """Start a group on loopback, wait until it serves, and stop it with the context."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "pixelpod", "group", "--model", str(model), "--ranks", str(ranks)]
    command += ["--device", device, "--listen", address, "--metrics", "none", *options]
    with (
        subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process,
        grpc.insecure_channel(address) as channel,
    ):
        try:
            _wait_serving(process, channel)
            yield group_pb2_grpc.WorkerGroupStub(channel)
        finally:
            process.send_signal(signal.SIGTERM)


def request(model: str, prompt: str = "a red fox", **parameters: Any) -> group_pb2.ExecuteRequest:
    """Return a request for one small image, with changed parameters."""
    resolved: dict[str, Any] = {
        "width": 64,
        "height": 64,
        "steps": 8,
        "guidance_scale": 4.0,
        "max_sequence_length": 64,
        "num_images": 1,
        "seeds": [7],
        "output_format": images_pb2.OUTPUT_FORMAT_PNG,
    } | parameters
    parameters_message = images_pb2.ResolvedParameters(**resolved)
    return group_pb2.ExecuteRequest(request_id="benchmark", model=model, prompt=prompt, parameters=parameters_message)


def _wait_serving(process: subprocess.Popen[bytes], channel: grpc.Channel) -> None:
    until, stub = time.monotonic() + READY_SECONDS, health_pb2_grpc.HealthStub(channel)
    while time.monotonic() < until:
        if process.poll() is not None:
            raise SystemExit(f"the group ended with exit code {process.returncode}")
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=1)
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return
        except grpc.RpcError:
            pass  # not listening yet
        time.sleep(0.05)
    raise SystemExit(f"not ready after {READY_SECONDS:g} s")
