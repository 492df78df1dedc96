"""What an operator can set of a group. The launcher hands it to the ranks through their environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from pixelpod.server.access import AccessSettings
from pixelpod.server.connections import ConnectionSettings
from pixelpod.server.logs import LogFormat
from pixelpod.server.metrics_access import MetricsAccessSettings

_LARGEST_PORT = 65535


def _check_port(address: str) -> str:
    if int(address.rpartition(":")[2]) > _LARGEST_PORT:
        raise ValueError(f"the port must be at most {_LARGEST_PORT}")
    return address


Address = Annotated[str, Field(pattern=r"^\S+:\d{1,5}$"), AfterValidator(_check_port)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_NONE = "none"
"""How the environment says that an optional setting is off."""


class GroupSettings(AccessSettings, ConnectionSettings, MetricsAccessSettings):
    """Settings of a group: arguments first, then environment variables PIXELPOD_GROUP_<FIELD>, then defaults."""

    model_config = SettingsConfigDict(
        env_prefix="PIXELPOD_GROUP_", env_parse_none_str=_NONE, frozen=True, use_attribute_docstrings=True
    )

    model: Path
    """The model file."""
    ranks: int = Field(default=1, ge=1)
    """Rank processes on this host, one device each."""
    device: Literal["cpu", "tpu", "cuda"] = "cpu"
    """What the ranks compute on."""
    nodes: int = Field(default=1, ge=1)
    """Hosts of the group, each with a launcher and as many ranks."""
    node_rank: int = Field(default=0, ge=0)
    """The number of this host, from 0. Node 0 has the endpoint."""
    rendezvous: Address | None = None
    """Where the launcher of node 0 listens for the others, host:port, the same on all; needed when nodes is above 1."""
    join_timeout_seconds: Seconds = 600.0
    """How long a launcher waits for the launchers of the other nodes, at the start and after the world broke."""
    listen: Address = "127.0.0.1:7861"
    """Where the group's endpoint listens, host:port. Only frontends call it."""
    metrics: Address | None = "127.0.0.1:9091"
    """Where Prometheus reads /metrics, host:port; "none" in the environment: nowhere."""
    probes: Address | None = None
    """Where Kubernetes' gRPC probes are answered besides, host:port: health only, without TLS and tokens."""
    name: str = ""
    """The group's name in answers and logs, unique in the deployment. Empty: the model's name."""
    cache_dir: Path | None = None
    """Where compiled programs are kept for the next start; None: where the model file says, if it does."""
    log_format: LogFormat = "text"
    """"text" for people, "json" for collectors."""

    queue_limit: int | None = Field(default=None, ge=1)
    """Images that wait for the device; more are refused with RESOURCE_EXHAUSTED. Frontends hold the long queue; this
    one needs to hold the next batch, whatever its key. None: as many as two of the model's largest batches."""
    in_flight_limit: int = Field(default=64, ge=1)
    """Requests accepted and not yet ended, with those whose images are still being read. It bounds memory."""
    max_request_seconds: Seconds = 600.0
    """Longest time a request may take, whether or not its caller set a deadline."""
    reader_stall_seconds: Seconds = 20.0
    """How long a frontend may take no byte of an answer before its call ends with RESOURCE_EXHAUSTED."""
    batch_window_seconds: float = Field(default=0.02, ge=0, allow_inf_nan=False)
    """How long after its arrival a request may wait for others to be computed with, while they are expected."""
    prompt_cache_bytes: int = Field(default=256 * 1024 * 1024, ge=0)
    """Host memory of each rank for what text encoders made of recent prompts; 0 turns that off."""
    encoding_threads: int = Field(default=2, ge=1)
    """Threads of rank 0 that turn pixels into image files while the next batch computes."""
    run_ahead_steps: int = Field(default=2, ge=0)
    """Denoising steps that may be in flight on an asynchronous device: how late progress and cancelling may be. 0 waits
    for each step, and leaves the device idle in between."""

    max_restarts: int = Field(default=3, ge=0)
    """How often a broken world is started again in this launcher's life. 0 where Kubernetes does it."""
    heartbeat_seconds: Seconds = 5.0
    """How often an idle rank 0 shows the other ranks that it lives."""
    control_timeout_seconds: Seconds = 60.0
    """A rank that hears nothing for this long ends its world. Above every stage of a batch, and heartbeat_seconds."""
    loading_timeout_seconds: Seconds = 1800.0
    """The same while weights load and buckets compile, which takes long."""
    device_timeout_seconds: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    """How long a rank tries to get its device, while another process holds it."""
    liveness_timeout_seconds: Seconds = 5.0
    """A rank process without a sign of life for this long is killed by its launcher, and the world starts again."""
    loading_liveness_timeout_seconds: Seconds = 120.0
    """The same while weights load and buckets compile, when native code can keep a process from showing signs."""
    stall_factor: float = Field(default=10.0, ge=1, allow_inf_nan=False)
    """A stage or step of a batch that takes this many times as long as measured broke the world, compiles excepted."""
    stall_floor_seconds: Seconds = 20.0
    """The same is never said before this time, however fast the model is."""
    drain_seconds: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """After SIGTERM: how long accepted requests may still run. The rest end with UNAVAILABLE."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.listen == self.metrics and not self.listen.endswith(":0"):
            raise ValueError("listen and metrics must be different addresses")
        if self.node_rank >= self.nodes:
            raise ValueError("node_rank must be below nodes")
        if self.nodes > 1 and self.rendezvous is None:
            raise ValueError("rendezvous, the address of node 0, is needed when nodes is above 1")
        if self.heartbeat_seconds * 2 > self.control_timeout_seconds:
            raise ValueError("control_timeout_seconds must be at least twice heartbeat_seconds")
        return self

    @property
    def world_size(self) -> int:
        """Rank processes on all nodes together."""
        return self.nodes * self.ranks

    def environment(self) -> dict[str, str]:
        """Return the environment variables from which `GroupSettings()` comes out the same in another process."""
        values = self.model_dump(mode="json")
        return {
            f"{self.model_config['env_prefix']}{name.upper()}": _NONE if value is None else str(value)
            for name, value in values.items()
        }
