"""Frontend settings come from arguments and the environment, and mistakes are named."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.settings import FrontendSettings


def test_defaults() -> None:
    settings = FrontendSettings(groups=["127.0.0.1:7861"])
    assert settings.groups == ("127.0.0.1:7861",)
    assert (settings.listen, settings.metrics) == ("127.0.0.1:7860", "127.0.0.1:9090")
    assert settings.unary_response_limit_bytes == 4 * 1024 * 1024
    assert settings.max_request_seconds == 600
    assert (settings.answer_kept_seconds, settings.answers_kept_bytes) == (60, 64 * 1024 * 1024)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIXELPOD_FRONTEND_GROUPS", "a:1, b:2")
    monkeypatch.setenv("PIXELPOD_FRONTEND_METRICS", "none")
    monkeypatch.setenv("PIXELPOD_FRONTEND_DRAIN_SECONDS", "7.5")
    settings = FrontendSettings()
    assert settings.groups == ("a:1", "b:2")
    assert settings.metrics is None
    assert settings.drain_seconds == 7.5


def test_arguments_before_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIXELPOD_FRONTEND_LISTEN", "127.0.0.1:1")
    assert FrontendSettings(groups=["a:1"], listen="127.0.0.1:2").listen == "127.0.0.1:2"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("groups", []),
        ("groups", ["no-port"]),
        ("listen", "127.0.0.1"),
        ("max_request_seconds", 0),
        ("max_request_seconds", float("inf")),
        ("drain_seconds", -1),
        ("group_silent_seconds", float("nan")),
        ("unary_response_limit_bytes", 0),
        ("answer_kept_seconds", float("nan")),
        ("answers_kept_bytes", -1),
        ("no_such_setting", 1),
    ],
)
def test_mistakes_are_named(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as refused:
        FrontendSettings(**{"groups": ["a:1"], field: value})
    assert field in str(refused.value)


def test_every_field_is_documented() -> None:
    undocumented = [name for name, field in FrontendSettings.model_fields.items() if not field.description]
    assert not undocumented
