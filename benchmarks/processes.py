"""Servers as processes of their own, on free loopback ports."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

READY_SECONDS = 60.0


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `python -m arguments`; stop it with the context."""
    command = [sys.executable, "-m", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            yield child
        finally:
            child.terminate()


@contextmanager
def announced(*arguments: str) -> Iterator[str]:
    """Run `python -m arguments`, which prints the address that it serves; yield that."""
    with process(*arguments) as child:
        assert child.stdout is not None
        yield child.stdout.readline().strip()


async def announce(server: grpc.aio.Server) -> None:
    """Serve on a free port until the process ends, and print the address for `announced`."""
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


@contextmanager
def frontend(groups: Sequence[str], *options: str) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """Run a frontend over these groups; yield its address, that of its metrics, and the process."""
    address, metrics = free_address(), free_address()
    routes = [option for group in groups for option in ("--group", group)]
    with process("pixelpod", "serve", *routes, "--listen", address, "--metrics", metrics, *options) as child:
        wait_serving(address)
        yield address, metrics, child


def wait_serving(address: str, serving: bool = True) -> None:
    """Wait until health says SERVING, or only answers."""
    options = [("grpc.max_reconnect_backoff_ms", 50), ("grpc.initial_reconnect_backoff_ms", 20)]
    until = time.monotonic() + READY_SECONDS
    with grpc.insecure_channel(address, options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < until:
            try:
                status = stub.Check(health_pb2.HealthCheckRequest(), timeout=1).status
                if not serving or status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.RpcError:
                pass  # not listening yet
            time.sleep(0.01)
    raise SystemExit(f"{address} does not serve after {READY_SECONDS:g} s")


def samples(metrics: str) -> dict[str, float]:
    """Return what /metrics tells now: by name, summed over labels."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name + (f"|{sample.labels['le']}" if "le" in sample.labels else "")
            sums[key] = sums.get(key, 0.0) + sample.value
    return sums
