"""Runs the command line in this process, as `pixelpod` would."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pixelpod.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it printed."""

    exit_code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()

    @property
    def json(self) -> Any:
        """The one JSON object on standard output."""
        return json.loads(self.stdout)


Run = Callable[..., Ended]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    def run_command(*arguments: str) -> Ended:
        exit_code = main(arguments)
        captured = capfdbinary.readouterr()
        return Ended(exit_code, captured.out, captured.err.decode())

    return run_command
