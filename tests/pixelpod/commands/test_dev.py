"""`pixelpod dev` up to where its processes start, and its default model."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from pixelpod.commands.default_model import default_model_file, write_default_model
from pixelpod.commands.deployment import Deployment
from pixelpod.commands.failure import CommandFailed
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


def test_ready_lines(run: Run, deployed: list[Deployment]) -> None:
    lines = run("dev", "--model", "m.yaml", "--listen", "127.0.0.1:7000").text.splitlines()
    assert lines[0] == "ready: 127.0.0.1:7000 serves m.yaml with 2 ranks"
    assert lines[1] == "metrics of the frontend: http://127.0.0.1:9090/metrics"
    assert lines[2].startswith("metrics of the group: http://127.0.0.1:")
    assert lines[3] == 'try: pixelpod generate "a red fox" -o fox.png --server 127.0.0.1:7000'


def test_without_metrics(run: Run, deployed: list[Deployment]) -> None:
    ended = run("dev", "--model", "m.yaml", "--metrics", "none")
    assert "frontend" not in ended.text
    assert ended.text.splitlines()[-1] == 'try: pixelpod generate "a red fox" -o fox.png'
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


def test_default_model_is_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = f"pixelpod/models/tiny-flux2-{version('pixelpod')}/model.yaml"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_model_file() == tmp_path / name
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_model_file() == tmp_path / ".cache" / name


def test_default_model_is_written_once(
    run: Run, deployed: list[Deployment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = run("dev")
    assert (first.exit_code, first.stderr) == (0, f"writing a tiny model to {default_model_file().parent}\n")
    assert default_model_file().read_text().startswith("name: tiny-flux2\n")
    assert [folder.name for folder in (tmp_path / "pixelpod" / "models").iterdir()] == [
        f"tiny-flux2-{version('pixelpod')}"
    ]
    second = run("dev")
    assert (second.exit_code, second.stderr) == (0, "")
    assert str(default_model_file()) in deployed[1].group_argv


async def test_default_model_that_another_process_writes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model_file = tmp_path / "models" / "tiny" / "model.yaml"
    monkeypatch.setattr(
        sys, "executable", str(_writer(tmp_path, f"mkdir -p {model_file.parent}; echo other > {model_file}"))
    )
    await write_default_model(model_file)
    assert model_file.read_text() == "other\n"
    assert [file.name for file in model_file.parent.parent.iterdir()] == ["tiny"]


async def test_default_model_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(_writer(tmp_path, "exit 5")))
    with pytest.raises(CommandFailed, match="exit code 5"):
        await write_default_model(tmp_path / "models" / "tiny" / "model.yaml")
    assert list((tmp_path / "models").iterdir()) == []


def _writer(folder: Path, commands: str) -> Path:
    """Return a program in Python's place that makes the folder asked for, after some commands of the test."""
    program = folder / "writer"
    program.write_text(f'#!/bin/sh\n{commands}\nmkdir "$4"\necho mine > "$4/model.yaml"\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("module", "extra"), [("grpc_health", "service"), ("torch", "worker")])
def test_missing_extra_is_named(module: str, extra: str) -> None:
    code = (
        "import importlib.util, sys; find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name: None if name == {module!r} else find(name)\n"
        "from pixelpod.cli import main; sys.exit(main(['dev', '--model', 'm.yaml']))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == f"error: needs `pip install pixelpod[{extra}]`: there is no module {module}\n"
