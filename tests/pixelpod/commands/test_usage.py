"""The command line as a whole: help, version, exit codes."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pixelpod.cli import app
from pixelpod.exit_codes import MEANINGS, ExitCode
from tests.pixelpod.commands.conftest import Run

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"


@pytest.mark.parametrize("command", [[], ["dev"], ["generate"], ["models"], ["serve"], ["group"]])
def test_help_documents_the_exit_codes(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    for code, meaning in MEANINGS.items():
        assert re.search(rf"^ +{code.value}  {re.escape(meaning)}", result.output, re.MULTILINE)


def test_document_has_the_same_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert {ExitCode(int(code)): meaning for code, meaning in rows} == MEANINGS


@pytest.mark.parametrize("command", ["dev", "generate", "models", "serve", "group", "token"])
def test_document_names_every_option(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    options = set(re.findall(r"--[a-z-]+", result.output.split("Options")[1].split("Exit codes")[0])) - {"--help"}
    missing = {option for option in options if f"`{option}" not in DOCUMENT.read_text()}
    assert not missing


def test_version(run: Run) -> None:
    assert run("--version").text == f"pixelpod {version('pixelpod')}\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [([], "Missing command"), (["modles"], "No such command 'modles'"), (["models", "--nope"], "--nope")],
)
def test_wrong_usage_is_one_line(run: Run, arguments: list[str], complaint: str) -> None:
    ended = run(*arguments)
    assert ended.exit_code == ExitCode.REFUSED
    assert re.fullmatch(rf"error: .*{re.escape(complaint)}.* Try --help\.\n", ended.stderr)
    assert ended.stdout == b""
