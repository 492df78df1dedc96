"""The model that `pixelpod dev` serves when none is named: a tiny one, written once into the user's cache folder."""

from __future__ import annotations

import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from importlib.metadata import version
from pathlib import Path

from pixelpod.commands.failure import CommandFailed
from pixelpod.commands.programs import run_program
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
        exit_code, messages = await run_program(
            *(sys.executable, "-m", "workers.tiny_checkpoints", FAMILY, f"{draft}/model"),
            environment={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            stdout=DEVNULL,
            stderr=PIPE,
        )
        if exit_code != 0:
            sys.stderr.write(messages)
            raise CommandFailed(f"writing the tiny model failed with exit code {exit_code}", ExitCode.FAILED)
        _adopt(Path(draft, "model"), model_file)


def _adopt(draft: Path, model_file: Path) -> None:
    try:
        draft.rename(model_file.parent)
    except OSError:
        # Another process was faster, which is as good.
        if not model_file.exists():
            raise
