"""Groups as real processes, and what their callers see of them."""

from __future__ import annotations

import io
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import yaml
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from pixelpod.v1 import group_pb2, group_pb2_grpc, images_pb2
from tests.e2e.processes import Process, free_address, start, wait_until
from tests.events import events_of
from workers.model_file import FamilyName
from workers.tiny_checkpoints import write_tiny_checkpoint

LAUNCH = (
    "import sys; from workers.launcher import launch; from workers.settings import GroupSettings;"
    "sys.exit(launch(GroupSettings()))"
)
"""Runs a group with settings from the environment, as `pixelpod group` does."""


@dataclass
class Group:
    """A group that was started. Use `running`."""

    process: Process
    address: str
    metrics_address: str
    channel: grpc.Channel = field(init=False)
    stub: group_pb2_grpc.WorkerGroupStub = field(init=False)

    def __post_init__(self) -> None:
        self.channel = grpc.insecure_channel(self.address)
        self.stub = group_pb2_grpc.WorkerGroupStub(self.channel)

    def statuses(self, seconds: float = 60.0) -> Iterator[group_pb2.GroupStatus]:
        """Yield statuses as they come, once the endpoint answers."""
        yield from self.stub.WatchStatus(group_pb2.WatchStatusRequest(), timeout=seconds, wait_for_ready=True)

    @property
    def status(self) -> group_pb2.GroupStatus:
        return next(self.statuses(seconds=10))

    def execute(self, seconds: float = 30.0, **changes: Any) -> list[images_pb2.GenerateEvent]:
        """Return all events of a `request`."""
        return events_of(self.stub.ExecuteStream(request(**changes), timeout=seconds))

    def metric(self, name: str, **labels: str) -> float | None:
        """Return the value of the first sample of this name that has these labels."""
        families = text_string_to_metric_families(self.metrics_page())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return next((sample.value for sample in samples if labels.items() <= sample.labels.items()), None)

    def metrics_page(self) -> str:
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    def rank(self, number: int) -> psutil.Process:
        return next(rank for rank in self.process.children() if rank.environ().get("RANK") == str(number))

    def wait_counted(self, code: str, times: float) -> None:
        """Wait until so many requests are counted with this code. A call's caller knows its end a moment before."""

        def counted() -> float | None:
            return self.metric("pixelpod_group_requests_total", code=code)

        wait_until(lambda: counted() == times, 5, lambda: f"{code} is counted {counted()} times, not {times}")

    def wait_idle(self, seconds: float = 10.0) -> None:
        """Wait until no request is in flight and every gauge says so."""
        wait_until(lambda: self.status.in_flight == 0, seconds, lambda: f"not idle: {self.status}")
        assert self.metric("pixelpod_group_in_flight") == 0
        assert self.metric("pixelpod_group_queue_length") == 0


def write_quick_model(folder: Path, batch_size: int = 1, **changes: Any) -> Path:
    """Write a tiny FLUX.2 that warms up quickly: one bucket, one batch size, one prompt length. Return its file."""
    file = write_tiny_checkpoint(FamilyName.FLUX2, folder)
    document = yaml.safe_load(file.read_text()) | changes
    document["buckets"] = [{"width": 64, "height": 64, "batch_sizes": [batch_size]}]
    document["limits"] = {"max_sequence_lengths": [64]}
    document["defaults"]["max_sequence_length"] = 64
    file.write_text(yaml.safe_dump(document))
    return file


@contextmanager
def running(
    model_file: Path, ranks: int = 2, environment: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[Group]:
    """Start a group, and end it with the context. It does not serve yet: see `processes.wait_serving`."""
    address, metrics_address = settings.get("listen") or free_address(), free_address()
    values = {"model": model_file, "ranks": ranks, "listen": address, "metrics": metrics_address, **settings}
    variables = {**(environment or {}), **environment_of(values)}
    with start([sys.executable, "-c", LAUNCH], variables) as process:
        group = Group(process, address, metrics_address)
        with group.channel:
            yield group


def environment_of(settings: dict[str, Any]) -> dict[str, str]:
    """Return the environment variables of these group settings."""
    return {f"PIXELPOD_GROUP_{name.upper()}": str(value) for name, value in settings.items()}


def request(model: str = "tiny-flux2", prompt: str = "a red fox", **parameters: Any) -> group_pb2.ExecuteRequest:
    """Return a request for one small image, with changed parameters."""
    resolved = {
        "width": 64,
        "height": 64,
        "steps": 4,
        "guidance_scale": 4.0,
        "max_sequence_length": 64,
        "seeds": [7],
        "output_format": images_pb2.OUTPUT_FORMAT_PNG,
    } | parameters
    resolved.setdefault("num_images", len(resolved["seeds"]))
    return group_pb2.ExecuteRequest(
        request_id="a-request",
        model=model,
        prompt=prompt,
        parameters=images_pb2.ResolvedParameters(**resolved),
    )


def images_of(events: list[images_pb2.GenerateEvent]) -> list[bytes]:
    """Return the image files that came in chunks, in order and without gaps."""
    files: list[bytes] = []
    for event in events:
        if event.WhichOneof("event") == "image_chunk":
            chunk = event.image_chunk
            if chunk.index == len(files):
                files.append(b"")
            assert (chunk.index, chunk.offset) == (len(files) - 1, len(files[-1]))
            files[-1] += chunk.data
    return files


def pixels_of(image_file: bytes) -> np.ndarray:
    """Return (height, width, 3) uint8."""
    return np.asarray(Image.open(io.BytesIO(image_file)))
