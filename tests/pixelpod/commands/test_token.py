"""`pixelpod token`: what it prints goes into a tokens file as it is."""

from __future__ import annotations

import json
from pathlib import Path

from pixelpod.server.callers import read_tokens_file
from tests.pixelpod.commands.conftest import Run


def test_json_of_a_token_for_some_models(run: Run, tmp_path: Path) -> None:
    drawn = run("token", "shop", "--model", "tiny", "--model", "other", "--json").json
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"callers": [drawn["entry"]]}))
    caller = read_tokens_file(file, limits_apply=True).value.find(drawn["token"])
    assert caller is not None
    assert (caller.name, caller.models, caller.limited) == ("shop", ["tiny", "other"], False)
    assert drawn["token"] not in file.read_text()


def test_lines_for_a_person(run: Run) -> None:
    token_line, entry_line = run("token", "shop").text.splitlines()
    token, entry = token_line.partition(": ")[2], json.loads(entry_line.partition(": ")[2])
    assert len(token) == 43  # 256 bits in base64
    assert (entry["name"], entry["models"]) == ("shop", "all")
    assert token not in entry_line


def test_every_token_is_another(run: Run) -> None:
    assert run("token", "shop", "--json").json["token"] != run("token", "shop", "--json").json["token"]


def test_names_that_a_tokens_file_would_refuse(run: Run) -> None:
    ended = run("token", "a shop")
    assert ended.exit_code == 2
    assert "name" in ended.stderr
