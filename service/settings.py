"""What an operator can set of a frontend, and the limits it holds everybody to."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from pixelpod.server.access import AccessSettings
from pixelpod.server.connections import ConnectionSettings
from pixelpod.server.logs import LogFormat
from pixelpod.server.metrics_access import MetricsAccessSettings
from service.addresses import Address, split_address

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class FrontendSettings(AccessSettings, ConnectionSettings, MetricsAccessSettings):
    """Settings of a frontend: arguments first, then environment variables PIXELPOD_FRONTEND_<FIELD>, then defaults."""

    model_config = SettingsConfigDict(
        env_prefix="PIXELPOD_FRONTEND_", env_parse_none_str="none", frozen=True, use_attribute_docstrings=True
    )

    groups: Annotated[tuple[Address, ...], NoDecode] = ()
    """Addresses of groups to route to, host:port; in the environment separated by commas. Of this and the next two at
    least one is needed; they add up."""
    groups_dns: Annotated[tuple[Address, ...], NoDecode] = ()
    """DNS names, name:port, whose every address is a group's; in the environment separated by commas."""
    groups_file: Path | None = None
    """A file with addresses of groups, one a line; it may change."""
    discovery_seconds: Seconds = 3.0
    """Pause between two looks at a DNS name or at the file."""
    dns_server: Address | None = None
    """The name server that is asked for groups_dns, address:port; by default those of /etc/resolv.conf."""
    listen: Address = "127.0.0.1:7860"
    """Where the public API listens, host:port; port 0 takes any free one."""
    metrics: Address | None = "127.0.0.1:9090"
    """Where Prometheus reads /metrics, host:port; "none" in the environment: nowhere."""
    probes: Address | None = None
    """Where Kubernetes' gRPC probes are answered besides, host:port: health only, without TLS and tokens."""
    log_format: LogFormat = "text"
    """"text" for people, "json" for collectors."""

    max_request_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    """Largest request message; larger ones are refused by the transport before they are read."""
    unary_response_limit_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    """Largest answer of Generate; the default is what gRPC clients accept. GenerateStream has no such limit."""
    max_request_seconds: Seconds = 600.0
    """Longest time a request may take, whether or not its caller set a deadline."""

    reader_stall_seconds: Seconds = 20.0
    """How long a caller may take no byte of its answer before its call ends with RESOURCE_EXHAUSTED."""
    unread_bytes: int = Field(default=256 * 1024 * 1024, ge=1024 * 1024)
    """How much of all answers may wait to be read; beyond it the calls end whose callers have not read for longest."""
    caller_unread_bytes: int = Field(default=128 * 1024 * 1024, ge=1024 * 1024)
    """The same for each caller: by its token, or where there are no tokens by its address."""

    answer_kept_seconds: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    """How long after its end an answer is kept for callers that repeat its request id."""
    answers_kept_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    """How much all kept answers may hold; the oldest go first, and an answer over this is not kept."""

    group_silent_seconds: Seconds = 2.0
    """A group is gone, and its requests in flight fail, when no status came for this long. Groups send two a second."""

    queue_limit: int = Field(default=256, ge=1)
    """Requests of a model that may wait for a group with room; more are refused with RESOURCE_EXHAUSTED."""
    no_group_seconds: Seconds = 3.0
    """Requests that wait end with UNAVAILABLE when no ready group could compute them for this long."""
    revision_weights: dict[str, dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]] = Field(
        default_factory=dict
    )
    """For two revisions of a model side by side: the share of requests that each gets, as
    {"model": {"revision": weight, ...}}. Revisions without a weight get none while one with a weight is ready."""
    max_connection_age_seconds: Seconds = 3600.0
    """When a client is asked to connect anew. What it has under way is finished, however long that may take."""
    reflection_needs_token: bool = True
    """Whether grpc.reflection needs a token, where there are tokens."""

    group_tls_ca_file: Path | None = None
    """PEM file with the authorities that groups' certificates come from; None: groups are spoken to in plain text."""
    group_tls_cert_file: Path | None = None
    """PEM file with the certificate chain that is shown to groups (mutual TLS). Needs group_tls_key_file."""
    group_tls_key_file: Path | None = None
    """PEM file with that certificate's private key, without a password."""
    group_tls_name: str = ""
    """The name in groups' certificates, where their addresses are not in them, as those of pods. Empty: the address."""
    group_token_file: Path | None = None
    """File with nothing but the token that groups know this frontend by. Needs group_tls_ca_file, or insecure."""

    drain_delay_seconds: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    """After SIGTERM: how long health says NOT_SERVING while requests are still taken, so that routers look away."""
    drain_seconds: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """After that: how long accepted requests may still run. The rest end with UNAVAILABLE."""

    @field_validator("groups", "groups_dns", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("dns_server")
    @classmethod
    def _has_no_name(cls, server: str | None) -> str | None:
        if server is not None:
            ip_address(split_address(server)[0])
        return server

    @model_validator(mode="after")
    def _has_groups(self) -> Self:
        if not (self.groups or self.groups_dns or self.groups_file):
            raise ValueError("no groups: give at least one of groups, groups_dns and groups_file")
        return self

    @model_validator(mode="after")
    def _consistent_group_access(self) -> Self:
        if (self.group_tls_cert_file is None) != (self.group_tls_key_file is None):
            raise ValueError("group_tls_cert_file and group_tls_key_file go together")
        if self.group_tls_ca_file is None:
            if self.group_tls_cert_file is not None or self.group_tls_name:
                raise ValueError("group_tls_cert_file and group_tls_name need group_tls_ca_file")
            if self.group_token_file is not None and not self.insecure:
                raise ValueError("group_token_file needs group_tls_ca_file: in plain text others could read the token")
        return self
