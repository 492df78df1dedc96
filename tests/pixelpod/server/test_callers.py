"""The tokens file: whose token it is, what they may do, and mistakes that are named without telling tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pixelpod.server.callers import ANONYMOUS, read_tokens_file
from pixelpod.server.errors import PermissionDenied
from pixelpod.server.reloading import FileRefused
from tests.tokens import entry, write_tokens


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def test_callers_are_found_by_each_of_their_tokens_and_no_other(file: Path) -> None:
    write_tokens(file, entry("shop", "old", "new"), entry("lab", "lab-token", models=["tiny"]), entry("gone"))
    tokens = read_tokens_file(file, limits_apply=True).value
    names = {"old": "shop", "new": "shop", "lab-token": "lab", "": None, "ol": None, "shop": None}
    found = {token: tokens.find(token) for token in names}
    assert {token: caller and caller.name for token, caller in found.items()} == names


def test_models_are_all_or_those_listed(file: Path) -> None:
    write_tokens(file, entry("shop", "a"), entry("lab", "b", models=["tiny"]), entry("none", "c", models=[]))
    shop, lab, nobody = read_tokens_file(file, limits_apply=True).value.callers
    for caller in (shop, ANONYMOUS, lab):
        caller.check_model("tiny")
    for caller in (lab, nobody):
        with pytest.raises(PermissionDenied, match=caller.name) as denied:
            caller.check_model("other")
        assert (denied.value.reason, denied.value.field) == ("MODEL_NOT_ALLOWED", "model")


def test_no_repr_tells_hashes(file: Path) -> None:
    write_tokens(file, entry("shop", "secret"))
    tokens = read_tokens_file(file, limits_apply=True).value
    assert tokens.callers[0].token_sha256[0] not in repr(tokens)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "Invalid JSON"),
        ("[]", "object"),
        ({"callers": [], "version": 2}, "version"),
        ({"callers": [{**entry("a", "t"), "token_sha256": ["a-token-itself"]}]}, "callers.0.token_sha256.0"),
        ({"callers": [{**entry("a", "t"), "token": "a-token-itself"}]}, "callers.0.token"),
        ({"callers": [{"name": "a", "token_sha256": []}]}, "callers.0.models"),
        ({"callers": [entry("a b", "t")]}, "callers.0.name"),
        ({"callers": [entry("a", "t", images_per_minute=0)]}, "callers.0.images_per_minute"),
        ({"callers": [entry("a", "t", max_concurrent_requests="4")]}, "callers.0.max_concurrent_requests"),
        ({"callers": [entry("a", "t"), entry("a", "u")]}, "unique"),
        ({"callers": [entry("a", "t"), entry("b", "t")]}, "unique"),
    ],
)
def test_mistakes_are_named_without_their_content(file: Path, content: object, complaint: str) -> None:
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(FileRefused) as refused:
        read_tokens_file(file, limits_apply=True)
    assert complaint in str(refused.value)
    assert str(file) in str(refused.value)
    assert "a-token-itself" not in str(refused.value)


def test_limits_are_refused_where_none_apply(file: Path) -> None:
    write_tokens(file, entry("frontend", "t", images_per_minute=5))
    with pytest.raises(FileRefused, match="for frontends"):
        read_tokens_file(file, limits_apply=False)
