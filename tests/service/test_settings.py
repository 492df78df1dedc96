"""Frontend settings come from arguments and the environment, and mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import FrontendSettings


def test_defaults() -> None:
    settings = FrontendSettings(groups=["127.0.0.1:7861"])
    assert settings.groups == ("127.0.0.1:7861",)
    assert (settings.listen, settings.metrics) == ("127.0.0.1:7860", "127.0.0.1:9090")
    assert settings.unary_response_limit_bytes == 4 * 1024 * 1024
    assert settings.max_request_seconds == 600
    assert settings.group_silent_seconds == 2
    assert (settings.groups_dns, settings.groups_file, settings.discovery_seconds) == ((), None, 3)
    assert (settings.answer_kept_seconds, settings.answers_kept_bytes) == (60, 64 * 1024 * 1024)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIXELPOD_FRONTEND_GROUPS", "a:1, b:2")
    monkeypatch.setenv("PIXELPOD_FRONTEND_METRICS", "none")
    monkeypatch.setenv("PIXELPOD_FRONTEND_DRAIN_SECONDS", "7.5")
    settings = FrontendSettings()
    assert settings.groups == ("a:1", "b:2")
    assert settings.metrics is None
    assert settings.drain_seconds == 7.5


@pytest.mark.parametrize(
    ("source", "value"), [("groups_dns", ("groups:7861", "more.ns:7861")), ("groups_file", Path("groups.txt"))]
)
def test_any_source_is_enough(monkeypatch: pytest.MonkeyPatch, source: str, value: object) -> None:
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    monkeypatch.setenv(f"PIXELPOD_FRONTEND_{source.upper()}", text)
    settings = FrontendSettings()
    assert settings.groups == ()
    assert getattr(settings, source) == value


def test_no_source_is_refused() -> None:
    with pytest.raises(ValidationError, match="give at least one of groups, groups_dns and groups_file"):
        FrontendSettings()


def test_arguments_before_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIXELPOD_FRONTEND_LISTEN", "127.0.0.1:1")
    assert FrontendSettings(groups=["a:1"], listen="127.0.0.1:2").listen == "127.0.0.1:2"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("groups", []),
        ("groups_dns", ["no-port"]),
        ("dns_server", "name.example:53"),
        ("discovery_seconds", 0),
        ("groups", ["no-port"]),
        ("listen", "127.0.0.1"),
        ("max_request_seconds", 0),
        ("max_request_seconds", float("inf")),
        ("drain_seconds", -1),
        ("group_silent_seconds", float("nan")),
        ("unary_response_limit_bytes", 0),
        ("max_connection_age_seconds", 0),
        ("max_connections", 7),
        ("max_connections_per_address", 0),
        ("max_connection_idle_seconds", 0),
        ("max_connection_idle_seconds", float("inf")),
        ("handshake_timeout_seconds", float("nan")),
        ("metrics_tls_cert_file", "a.crt"),
        ("metrics_tls_client_ca_file", "ca.pem"),
        ("tls_cert_file", "a.crt"),
        ("tls_client_ca_file", "ca.pem"),
        ("group_tls_cert_file", "a.crt"),
        ("group_tls_name", "groups.example"),
        ("group_token_file", "token"),
        ("answer_kept_seconds", float("nan")),
        ("answers_kept_bytes", -1),
        ("no_such_setting", 1),
    ],
)
def test_mistakes_are_named(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as refused:
        FrontendSettings(**{"groups": ["a:1"], field: value})
    assert field in str(refused.value)


def test_a_group_token_travels_with_tls_or_where_plain_text_is_wanted() -> None:
    for how in ({"group_tls_ca_file": "ca.pem"}, {"insecure": True}):
        FrontendSettings(groups=["a:1"], group_token_file="token", **how)


def test_every_field_is_documented() -> None:
    undocumented = [name for name, field in FrontendSettings.model_fields.items() if not field.description]
    assert not undocumented
