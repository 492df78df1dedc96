"""The model that `pixelpod dev` serves when none is named: the demo model, which comes with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def default_model_file() -> Path:
    """Return the demo model's file. The package that holds it must be installed: see `extras.require`."""
    return Path(str(files("workers") / "demo_model" / "model.yaml"))
