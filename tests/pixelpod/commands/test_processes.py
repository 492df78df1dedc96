"""The command line as real processes: exit codes, streams, signals, and what gets imported."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pixelpod.v1 import images_pb2
from tests.pixelpod.stub_server import StubServer, hang, model, progress

PIXELPOD = (sys.executable, "-m", "pixelpod")
SECONDS = 30.0


def test_generate(server: StubServer, tmp_path: Path) -> None:
    output = tmp_path / "fox.png"
    result = subprocess.run(
        [*PIXELPOD, "generate", "a red fox", "-o", output, "--server", server.address, "--json"],
        capture_output=True,
        timeout=SECONDS,
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert json.loads(result.stdout)["images"][0]["path"] == str(output)
    assert output.read_bytes() == b"an image"


def test_image_through_a_pipe(server: StubServer) -> None:
    result = subprocess.run(
        [*PIXELPOD, "generate", "a red fox", "-o", "-", "--server", server.address],
        capture_output=True,
        timeout=SECONDS,
    )
    assert (result.returncode, result.stdout) == (0, b"an image")


def test_installed_command(server: StubServer) -> None:
    server.models = lambda: images_pb2.ListModelsResponse(models=[model()])
    command = Path(sys.executable).with_name("pixelpod")
    result = subprocess.run([command, "models", "--server", server.address], capture_output=True, timeout=SECONDS)
    assert result.returncode == 0
    assert b"tiny" in result.stdout


def test_errors_are_one_line_without_traceback() -> None:
    with StubServer() as server:
        address = server.address
    result = subprocess.run([*PIXELPOD, "models", "--server", address], capture_output=True, text=True, timeout=SECONDS)
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.startswith(f"error: {address}: ")
    assert result.stderr.count("\n") == 1


def test_progress_is_drawn_on_a_terminal(server: StubServer, tmp_path: Path) -> None:
    terminal, child_side = pty.openpty()
    process = subprocess.Popen(
        [*PIXELPOD, "generate", "a red fox", "-o", tmp_path / "fox.png", "--server", server.address],
        stdout=subprocess.PIPE,
        stderr=child_side,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(child_side)
    drawn = _read_all(terminal)
    stdout, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert b"drawing" in drawn
    assert b"2/2" in drawn
    assert b"seed 0" in stdout
    assert b"drawing" not in stdout


def _read_all(terminal: int) -> bytes:
    """Read a terminal until its other side is closed, which Linux tells with an error."""
    read = b""
    with os.fdopen(terminal, "rb", buffering=0) as file:
        try:
            while part := file.read(4096):
                read += part
        except OSError:
            pass
    return read


def test_interrupt(server: StubServer, tmp_path: Path) -> None:
    server.script = hang(progress(1, 2))
    process = subprocess.Popen(
        [*PIXELPOD, "generate", "a red fox", "-o", tmp_path / "fox.png", "--server", server.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert server.called.wait(SECONDS)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=SECONDS)
    assert (process.returncode, stdout, stderr) == (130, b"", b"")
    assert server.cancelled.wait(SECONDS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("statement", ["import pixelpod.client, pixelpod.cli", "main(['--help'])"])
def test_nothing_heavy_is_imported(statement: str) -> None:
    code = (
        "import sys; from pixelpod.cli import main; sys.modules['torch'] = None\n"
        f"{statement}\n"
        "heavy = {'torch', 'service', 'workers', 'PIL', 'numpy'} & {m.split('.')[0] for m in sys.modules}\n"
        "sys.exit(str(heavy) if heavy != {'torch'} else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS)
    assert result.returncode == 0, result.stderr
