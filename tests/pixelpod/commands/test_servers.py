"""`pixelpod serve` and `pixelpod group`: options become settings; errors become exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import service.frontend
import workers.launcher
from pixelpod.server.reloading import FileRefused
from pixelpod.server.transport import AddressInUse, PlainTextRefused
from service.settings import FrontendSettings
from tests.pixelpod.commands.conftest import Run
from workers.errors import ModelRefused
from workers.settings import GroupSettings

ACCESS_OPTIONS = (
    *("--tls-cert", "a.crt", "--tls-key", "a.key", "--tls-client-ca", "ca.pem", "--tokens", "tokens.json"),
    *("--metrics-tls-cert", "m.crt", "--metrics-tls-key", "m.key", "--metrics-tls-client-ca", "m.pem"),
    "--insecure",
)
ACCESS_SETTINGS = {
    "tls_cert_file": Path("a.crt"),
    "tls_key_file": Path("a.key"),
    "tls_client_ca_file": Path("ca.pem"),
    "tokens_file": Path("tokens.json"),
    "metrics_tls_cert_file": Path("m.crt"),
    "metrics_tls_key_file": Path("m.key"),
    "metrics_tls_client_ca_file": Path("m.pem"),
    "insecure": True,
}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[FrontendSettings]:
    """Run no frontend; keep the settings it would have."""
    served = []

    async def run(settings: FrontendSettings) -> None:
        served.append(settings)

    monkeypatch.setattr(service.frontend, "run", run)
    return served


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[GroupSettings]:
    """Launch no group; keep the settings it would have, and end with exit code 7."""
    launched = []

    def launch(settings: GroupSettings) -> int:
        launched.append(settings)
        return 7

    monkeypatch.setattr(workers.launcher, "launch", launch)
    return launched


def test_serve_passes_on_what_is_given(run: Run, served: list[FrontendSettings]) -> None:
    ended = run(
        *("serve", "--group", "a:1", "--group", "b:2", "--listen", "127.0.0.1:0", "--metrics", "none"),
        *("--groups-dns", "c:3", "--groups-dns", "d:4", "--groups-file", "groups.txt"),
        *("--drain-delay-seconds", "0", "--drain-seconds", "4", "--log-format", "json", *ACCESS_OPTIONS),
    )
    assert ended.exit_code == 0
    assert served == [
        FrontendSettings(
            groups=("a:1", "b:2"),
            groups_dns=("c:3", "d:4"),
            groups_file=Path("groups.txt"),
            listen="127.0.0.1:0",
            metrics=None,
            drain_delay_seconds=0,
            drain_seconds=4,
            log_format="json",
            **ACCESS_SETTINGS,
        )
    ]


def test_serve_leaves_the_rest_to_the_environment(
    run: Run, served: list[FrontendSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIXELPOD_FRONTEND_GROUPS", "a:1,b:2")
    monkeypatch.setenv("PIXELPOD_FRONTEND_LISTEN", "0.0.0.0:1")
    assert run("serve", "--listen", "0.0.0.0:2").exit_code == 0
    assert (served[0].groups, served[0].listen) == (("a:1", "b:2"), "0.0.0.0:2")
    assert served[0].metrics == "127.0.0.1:9090"


def test_group_passes_on_what_is_given(run: Run, launched: list[GroupSettings]) -> None:
    ended = run(
        *("group", "--model", "m.yaml", "--ranks", "2", "--device", "tpu", "--listen", "127.0.0.1:0"),
        *("--metrics", "127.0.0.1:1", "--name", "a", "--max-restarts", "0", "--queue-limit", "3"),
        *("--drain-seconds", "4", "--log-format", "json", *ACCESS_OPTIONS),
    )
    assert ended.exit_code == 7
    assert launched == [
        GroupSettings(
            model=Path("m.yaml"),
            ranks=2,
            device="tpu",
            listen="127.0.0.1:0",
            metrics="127.0.0.1:1",
            name="a",
            max_restarts=0,
            queue_limit=3,
            drain_seconds=4,
            log_format="json",
            **ACCESS_SETTINGS,
        )
    ]


def test_group_leaves_the_rest_to_the_environment(
    run: Run, launched: list[GroupSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIXELPOD_GROUP_MODEL", "m.yaml")
    monkeypatch.setenv("PIXELPOD_GROUP_HEARTBEAT_SECONDS", "2")
    run("group")
    assert launched == [GroupSettings(model=Path("m.yaml"), heartbeat_seconds=2)]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["serve"], "no groups: give at least one of groups, groups_dns and groups_file\n"),
        (["serve", "--group", "a:1", "--listen", "7860"], "listen"),
        (["group"], "model"),
        (["group", "--model", "m.yaml", "--ranks", "0"], "ranks"),
        (["group", "--model", "m.yaml", "--device", "gpu"], "--device"),
    ],
)
def test_refused_settings_are_named(
    run: Run,
    served: list[FrontendSettings],
    launched: list[GroupSettings],
    arguments: list[str],
    complaint: str,
) -> None:
    ended = run(*arguments)
    assert ended.exit_code == 2
    assert ended.stderr.startswith("error: ")
    assert complaint in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert served == launched == []


REFUSED_STARTS = [
    (AddressInUse("cannot listen on a:1"), 3),
    (FileRefused("tokens.json: no such file"), 2),
    (PlainTextRefused("a:1 is not loopback"), 2),
]


@pytest.mark.parametrize(("error", "exit_code"), [(ModelRefused("m.yaml: no such file"), 2), *REFUSED_STARTS])
def test_group_that_refuses_to_start(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, exit_code: int
) -> None:
    def launch(settings: GroupSettings) -> int:
        raise error

    monkeypatch.setattr(workers.launcher, "launch", launch)
    ended = run("group", "--model", "m.yaml")
    assert (ended.exit_code, ended.stderr) == (exit_code, f"error: {error}\n")


@pytest.mark.parametrize(("error", "exit_code"), REFUSED_STARTS)
def test_frontend_that_refuses_to_start(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, exit_code: int
) -> None:
    async def serve(settings: FrontendSettings) -> None:
        raise error

    monkeypatch.setattr(service.frontend, "run", serve)
    ended = run("serve", "--group", "a:1")
    assert (ended.exit_code, ended.stderr) == (exit_code, f"error: {error}\n")


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        (["serve", "--group", "a:1"], "pydantic_settings", "service"),
        (["group", "--model", "m.yaml"], "yaml", "worker"),
    ],
)
def test_missing_extra_is_named(command: list[str], module: str, extra: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from pixelpod.cli import main; sys.exit(main({command!r}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == f"error: needs `pip install pixelpod[{extra}]`: there is no module {module}\n"
