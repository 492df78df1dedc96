from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pixelpod.stub_server import StubServer


@pytest.fixture
def server() -> Iterator[StubServer]:
    with StubServer() as server:
        yield server
