from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from pixelpod.server.garbage import collection_paused, keep_for_good


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _unfreeze() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_imports_are_not_interrupted_and_collection_goes_on_after_them() -> None:
    with collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collection_goes_on_after_an_import_that_failed() -> None:
    with pytest.raises(ImportError), collection_paused():
        import pixelpod.nothing  # noqa: F401
    assert gc.isenabled()


def test_what_is_there_is_not_looked_at_again_and_what_comes_is() -> None:
    there = [Cycle() for _ in range(10)]
    keep_for_good()
    kept = gc.get_freeze_count()
    assert kept > len(there)
    assert not any(found is there[0] for found in gc.get_objects())
    came = Cycle()
    assert any(found is came for found in gc.get_objects())
    del came
    assert gc.collect() > 0
    assert gc.get_freeze_count() == kept
