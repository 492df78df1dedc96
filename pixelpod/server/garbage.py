"""When Python looks for garbage in cycles: not during imports, and never again among what stays for good."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Look for no garbage within: imports only make objects, and looking at all of them again and again takes time.

    A fifth of the time that torch and diffusers take to import.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def keep_for_good() -> None:
    """Leave the objects that are there now out of all later collections, which would stop the process to look at them.

    A process with torch and diffusers has 400,000, which is 0.2 s at a time. Call it once everything is set up.
    """
    gc.collect()
    gc.freeze()
