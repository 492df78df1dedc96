"""Text and JSON logs tell the same."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from pixelpod.server.logs import configure_logging


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_line_has_role_level_and_extra_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", role="group/rank1")
    logging.getLogger("workers.rank").info("ready", extra={"request_id": "r-1"})
    line = json.loads(capsys.readouterr().err)
    assert line["role"] == "group/rank1"
    assert (line["level"], line["logger"], line["message"]) == ("INFO", "workers.rank", "ready")
    assert line["request_id"] == "r-1"


def test_text_line_has_the_same_extra_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("text", role="frontend")
    logging.getLogger("service.frontend").info("listening", extra={"address": "127.0.0.1:1"})
    line = capsys.readouterr().err.strip()
    assert line.endswith("INFO [frontend] listening address=127.0.0.1:1")


def test_other_libraries_stay_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("text", role="frontend")
    logging.getLogger("diffusers").info("a prompt might be in here")
    assert capsys.readouterr().err == ""
