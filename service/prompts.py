"""The two rules that every prompt keeps: a byte limit, and something to be seen."""

from __future__ import annotations

import unicodedata

from pixelpod.server.errors import InvalidRequest

INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zs", "Zl", "Zp", "Mn", "Me"})
"""Unicode general categories that show nothing by themselves: control, format (zero-width), spaces, bare marks."""

BLANKS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Hangul fillers and the empty Braille cell: letters and symbols by category, blank to the eye."""


def check_prompt_bytes(field: str, text: str, max_bytes: int) -> None:
    """Refuse `text` of more than `max_bytes` bytes in UTF-8.

    Raises:
        InvalidRequest: naming `field` and the limit, never the text.
    """
    # A character has at least one byte: text far over the limit is not even encoded.
    if len(text) > max_bytes or len(text.encode()) > max_bytes:
        raise InvalidRequest(field, f"{field} is over the model's limit of {max_bytes} bytes in UTF-8: shorten it")


def check_visible(field: str, text: str) -> None:
    """Refuse `text` without a visible character: empty, or only spaces, zero-width, format or control characters.

    Raises:
        InvalidRequest: naming `field`.
    """
    if not any(_visible(character) for character in text):
        raise InvalidRequest(
            field,
            f"{field} has no visible character: spaces, zero-width and control characters alone are no {field}",
        )


def _visible(character: str) -> bool:
    return unicodedata.category(character) not in INVISIBLE_CATEGORIES and character not in BLANKS
