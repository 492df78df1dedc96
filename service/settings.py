"""What an operator can set of a frontend, and the limits it holds everybody to."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from pixelpod.server.logs import LogFormat

Address = Annotated[str, Field(pattern=r"^\S+:\d{1,5}$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class FrontendSettings(BaseSettings):
    """Settings of a frontend: arguments first, then environment variables PIXELPOD_FRONTEND_<FIELD>, then defaults."""

    model_config = SettingsConfigDict(
        env_prefix="PIXELPOD_FRONTEND_", env_parse_none_str="none", frozen=True, use_attribute_docstrings=True
    )

    groups: Annotated[tuple[Address, ...], NoDecode] = Field(min_length=1)
    """Addresses of the groups to route to, host:port; in the environment separated by commas."""
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

    group_silent_seconds: Seconds = 5.0
    """A group is gone, and its requests in flight fail, when no status came for this long. Groups send one a second."""

    drain_delay_seconds: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    """After SIGTERM: how long health says NOT_SERVING while requests are still taken, so that routers look away."""
    drain_seconds: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """After that: how long accepted requests may still run. The rest end with UNAVAILABLE."""

    @field_validator("groups", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
