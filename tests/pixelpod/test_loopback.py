"""What only this machine can reach."""

from __future__ import annotations

import pytest

from pixelpod.loopback import is_loopback


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.8.7:1", "localhost:1", "[::1]:1"])
def test_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[2001:db8::1]:1", "127.0.0.1.example:1", "localhost.example:1", ":1"],
)
def test_what_others_may_reach(address: str) -> None:
    assert not is_loopback(address)
