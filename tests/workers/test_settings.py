from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from workers.settings import GroupSettings


def test_ranks_read_the_same_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = GroupSettings(
        model=Path("models/a b.yaml"),
        ranks=4,
        metrics=None,
        drain_seconds=2.5,
        name="blue",
        insecure=True,
        tls_cert_file=Path("a.crt"),
        tls_key_file=Path("a.key"),
        tokens_file=Path("tokens.json"),
        metrics_tls_cert_file=Path("m.crt"),
        metrics_tls_key_file=Path("m.key"),
        max_connections=100,
    )
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert GroupSettings() == settings


def test_arguments_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIXELPOD_GROUP_RANKS", "2")
    monkeypatch.setenv("PIXELPOD_GROUP_QUEUE_LIMIT", "3")
    settings = GroupSettings(model=Path("m.yaml"), ranks=8)
    assert (settings.ranks, settings.queue_limit) == (8, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ranks", 0),
        ("device", "gpu"),
        ("listen", "localhost"),
        ("listen", "127.0.0.1:65536"),
        ("nodes", 0),
        ("nodes", 2),
        ("node_rank", 1),
        ("node_rank", -1),
        ("rendezvous", "host"),
        ("join_timeout_seconds", 0),
        ("queue_limit", 0),
        ("drain_seconds", float("inf")),
        ("max_request_seconds", 0),
        ("control_timeout_seconds", 9.9),
        ("metrics", "127.0.0.1:7861"),
        ("max_connections", 7),
        ("max_connections_per_address", 0),
        ("max_connection_idle_seconds", 0),
        ("max_connection_idle_seconds", float("inf")),
        ("handshake_timeout_seconds", float("nan")),
        ("metrics_tls_cert_file", Path("a.crt")),
        ("metrics_tls_client_ca_file", Path("ca.pem")),
        ("tls_cert_file", Path("a.crt")),
        ("tls_key_file", Path("a.key")),
        ("tls_client_ca_file", Path("ca.pem")),
    ],
)
def test_settings_out_of_bounds_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        GroupSettings(model=Path("m.yaml"), **{name: value})


def test_several_nodes_have_as_many_ranks_each() -> None:
    settings = GroupSettings(model=Path("m.yaml"), ranks=4, nodes=2, node_rank=1, rendezvous="node0:29400")
    assert settings.world_size == 8


def test_every_setting_is_documented() -> None:
    assert [name for name, field in GroupSettings.model_fields.items() if not field.description] == []
