"""`pixelpod dev` up to where its processes start, and its default model."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pixelpod.commands.default_model import default_model_file
from pixelpod.commands.deployment import Deployment
from pixelpod.exit_codes import ExitCode
from pixelpod.server.errors import InvalidRequest
from tests.pixelpod.commands.conftest import Run
from tests.pixelpod.stub_server import StubServer, fail

PRINT_SECONDS = 0.5
"""Enough to print the ready lines, after which `dev` waits for a signal."""
IMAGE_SECONDS = 30.0
"""Enough to ask for an image."""


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> list[Deployment]:
    """Start no process; keep what would be started, as if it became ready and were stopped soon."""
    return _without_processes(monkeypatch, PRINT_SECONDS)


@pytest.fixture
def deployed_for_an_image(monkeypatch: pytest.MonkeyPatch) -> list[Deployment]:
    """Start no process; keep what would be started, as if it became ready and were used to the end."""
    return _without_processes(monkeypatch, IMAGE_SECONDS)


def _without_processes(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[Deployment]:
    deployed = []

    async def run(self: Deployment, tell: object, use: Callable[[], Coroutine[Any, Any, None]]) -> None:
        deployed.append(self)
        with suppress(TimeoutError):
            await asyncio.wait_for(use(), seconds)

    monkeypatch.setattr(Deployment, "run", run)
    return deployed


def test_options_reach_both_processes(run: Run, deployed: list[Deployment]) -> None:
    ended = run(
        *("dev", "--model", "m.yaml", "--ranks", "3", "--device", "tpu", "--listen", "0.0.0.0:7000"),
        *("--metrics", "127.0.0.1:7001", "--log-format", "json"),
    )
    assert ended.exit_code == 0
    (deployment,) = deployed
    group = deployment.group_address
    pixelpod = (sys.executable, "-m", "pixelpod")
    assert deployment.frontend_address == "127.0.0.1:7000"
    assert deployment.frontend_argv == (
        *(*pixelpod, "serve", "--group", group, "--listen", "0.0.0.0:7000", "--metrics", "127.0.0.1:7001"),
        *("--drain-delay-seconds", "0", "--drain-seconds", "3.0", "--log-format", "json"),
    )
    group_metrics = deployment.group_argv[deployment.group_argv.index("--metrics") + 1]
    assert deployment.group_argv == (
        *(*pixelpod, "group", "--model", "m.yaml", "--ranks", "3", "--device", "tpu", "--listen", group),
        *("--metrics", group_metrics, "--log-format", "json"),
    )
    assert group.startswith("127.0.0.1:")
    assert group_metrics.startswith("127.0.0.1:")


def test_plain_text_for_everybody_is_passed_on_to_the_frontend(run: Run, deployed: list[Deployment]) -> None:
    run("dev", "--model", "m.yaml", "--listen", "0.0.0.0:7000", "--insecure")
    assert deployed[0].frontend_argv[-1] == "--insecure"
    assert "--insecure" not in deployed[0].group_argv


def test_ready_lines(run: Run, deployed: list[Deployment]) -> None:
    lines = run("dev", "--model", "m.yaml", "--listen", "127.0.0.1:7000").text.splitlines()
    assert lines[0] == "ready: 127.0.0.1:7000 serves m.yaml with 2 ranks"
    assert lines[1] == "metrics of the frontend: http://127.0.0.1:9090/metrics"
    assert lines[2].startswith("metrics of the group: http://127.0.0.1:")
    assert lines[3] == 'try: pixelpod generate "two green squares on black" -o squares.png --server 127.0.0.1:7000'


def test_without_metrics(run: Run, deployed: list[Deployment]) -> None:
    ended = run("dev", "--model", "m.yaml", "--metrics", "none")
    assert "frontend" not in ended.text
    assert ended.text.splitlines()[-1] == 'try: pixelpod generate "two green squares on black" -o squares.png'
    argv = deployed[0].frontend_argv
    assert argv[argv.index("--metrics") + 1] == "none"


def test_one_image_and_stop(
    run: Run, deployed_for_an_image: list[Deployment], server: StubServer, tmp_path: Path
) -> None:
    output = tmp_path / "fox.png"
    ended = run("dev", "--model", "m.yaml", "--listen", server.address, "--prompt", "a fox", "--output", str(output))
    assert ended.exit_code == 0
    assert output.read_bytes() == b"an image"
    assert [request.prompt for request in server.requests] == ["a fox"]


def test_one_image_that_is_not_made(run: Run, deployed_for_an_image: list[Deployment], server: StubServer) -> None:
    server.script = fail(InvalidRequest("prompt", "prompt has no visible character"))
    ended = run("dev", "--model", "m.yaml", "--listen", server.address, "--prompt", " ", "--output", "fox.png")
    assert ended.exit_code == ExitCode.REFUSED
    assert "prompt has no visible character" in ended.stderr


@pytest.mark.parametrize("option", ["--prompt", "--output"])
def test_prompt_and_output_go_together(run: Run, deployed: list[Deployment], option: str) -> None:
    ended = run("dev", "--model", "m.yaml", option, "fox.png")
    assert ended.exit_code == ExitCode.REFUSED
    assert "--prompt and --output go together" in ended.stderr


@pytest.mark.parametrize("option", ["--listen", "--metrics"])
def test_wrong_address(run: Run, deployed: list[Deployment], option: str) -> None:
    ended = run("dev", "--model", "m.yaml", option, "7860")
    assert ended.exit_code == 2
    assert f"Invalid value for {option}: '7860' is no address" in ended.stderr
    assert deployed == []


def test_default_model_comes_with_the_package(run: Run, deployed: list[Deployment]) -> None:
    ended = run("dev")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert default_model_file().read_text().startswith("# The demo model")
    assert str(default_model_file()) in deployed[0].group_argv
