"""The model that `pixelpod dev` serves when none is named: a tiny one, written once into the user's cache folder."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from pixelpod.commands.failure import CommandFailed
from pixelpod.exit_codes import ExitCode

FAMILY = "flux2"


def default_model_file() -> Path:
    """Return where the model file is, or will be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "pixelpod" / "models" / f"tiny-{FAMILY}-{version('pixelpod')}" / "model.yaml"


async def write_default_model(model_file: Path) -> None:
    """Write the tiny model so that it appears whole under its folder's name or not at all.

    A process of its own writes it: this one stays without torch.

    Raises:
        CommandFailed: if that process fails.
    """
    models = model_file.parent.parent
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=models, prefix=".draft-") as draft:
        await _run(sys.executable, "-m", "workers.tiny_checkpoints", FAMILY, f"{draft}/model")
        _adopt(Path(draft, "model"), model_file)


def _adopt(draft: Path, model_file: Path) -> None:
    try:
        draft.rename(model_file.parent)
    except OSError:
        # Another process was faster, which is as good.
        if not model_file.exists():
            raise


async def _run(*argv: str) -> None:
    """Run a program to its end; its messages are shown only when it fails."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, messages = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        sys.stderr.write(messages.decode(errors="replace"))
        raise CommandFailed(f"writing the tiny model failed with exit code {process.returncode}", ExitCode.FAILED)
