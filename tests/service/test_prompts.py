"""A prompt is within its byte limit and shows something."""

from __future__ import annotations

import pytest

from pixelpod.server.errors import InvalidRequest
from service.prompts import check_prompt_bytes, check_visible


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "\t\n\r\f",
        "\u00a0\u2003\u3000",
        "\u200b\u200c\u200d\u2060\ufeff",
        "\u202e\u2066\u2069",
        "\x00\x1b",
        "\u0301\ufe0f\u034f",
        "\u3164\u115f\uffa0\u2800",
        "\U000e0041",
    ],
    ids=ascii,
)
def test_nothing_visible(text: str) -> None:
    with pytest.raises(InvalidRequest, match="no visible character") as refused:
        check_visible("prompt", text)
    assert refused.value.field == "prompt"


@pytest.mark.parametrize(
    "text", ["a", " . ", "\u200bx", "紅", "🏠", "👩\u200d🚀", "é", "e\u0301", "-", "\n猫\n"], ids=ascii
)
def test_something_visible(text: str) -> None:
    check_visible("prompt", text)


@pytest.mark.parametrize(("text", "size"), [("aaaaa", 5), ("紅家", 6), ("🏠a", 5)])
def test_bytes_are_counted_in_utf8(text: str, size: int) -> None:
    check_prompt_bytes("negative_prompt", text, size)
    with pytest.raises(InvalidRequest, match=f"negative_prompt is over .* limit of {size - 1} bytes") as refused:
        check_prompt_bytes("negative_prompt", text, size - 1)
    assert refused.value.field == "negative_prompt"
    assert text not in refused.value.message
