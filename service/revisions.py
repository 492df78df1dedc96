"""Two revisions of a model side by side: which of them a request is for."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping


def choose_revision(weights: Mapping[str, float], ready: Collection[str]) -> str | None:
    """Return one of the `ready` revisions, each as likely as its weight says; None where weights choose none of them.

    Revisions without a weight are not chosen while one with a weight is ready.
    """
    weighted = {revision: weight for revision, weight in weights.items() if revision in ready and weight > 0}
    if not weighted:
        return None
    return random.choices(list(weighted), list(weighted.values()))[0]
