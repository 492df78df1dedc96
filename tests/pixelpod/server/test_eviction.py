"""Which connections make room: idle ones of the address that has the most, never one with a call."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pixelpod.server.eviction import Candidate, Reason, choose, roomy
from pixelpod.server.open_sockets import Accepted, Peer


def _connection(number: int, address: str = "a", seen: float = 0.0, idle_since: float | None = 0.0) -> Candidate:
    return Candidate(Accepted(Peer(address, number), number, number, seen), idle_since)


def _numbers(chosen: list[tuple[Accepted, Reason]]) -> list[int]:
    return [connection.descriptor for connection, _ in chosen]


def test_an_eighth_is_kept_free() -> None:
    assert [roomy(limit) for limit in (8, 64, 100, 2048)] == [7, 56, 87, 1792]


def test_nothing_is_closed_while_there_is_room() -> None:
    assert choose([_connection(number) for number in range(7)], 8, 7) == []


def test_the_longest_idle_make_room() -> None:
    connections = [_connection(number, idle_since=float(-number)) for number in range(10)]
    chosen = choose(connections, 8, 100)
    assert _numbers(chosen) == [9, 8, 7]
    assert {reason for _, reason in chosen} == {Reason.ROOM}


def test_the_address_that_has_the_most_makes_room() -> None:
    few = [_connection(number, "few", idle_since=-100.0) for number in range(2)]
    many = [_connection(number, "many") for number in range(10, 17)]
    assert set(_numbers(choose(few + many, 8, 100))) < set(range(10, 17))


def test_connections_with_a_call_make_no_room() -> None:
    busy = [_connection(number, "busy", idle_since=None) for number in range(20)]
    assert _numbers(choose([*busy, _connection(50, "idle")], 16, 100)) == [50]


def test_an_address_over_its_limit_loses_the_longest_idle_then_the_youngest() -> None:
    connections = [
        _connection(1, seen=1.0, idle_since=None),
        _connection(2, seen=2.0, idle_since=None),
        _connection(3, seen=3.0, idle_since=9.0),
        _connection(4, seen=4.0, idle_since=5.0),
        _connection(5, "b", idle_since=0.0),
    ]
    chosen = choose(connections, 100, 1)
    assert _numbers(chosen) == [4, 3, 2]
    assert {reason for _, reason in chosen} == {Reason.ADDRESS}


_CONNECTIONS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.none() | st.integers(0, 9)), max_size=60
).map(lambda drawn: [_connection(number, *each) for number, each in enumerate(drawn)])


@given(_CONNECTIONS, st.integers(8, 40), st.integers(1, 20))
def test_limits_hold_after_it(connections: list[Candidate], limit: int, limit_per_address: int) -> None:
    chosen = choose(connections, limit, limit_per_address)
    closed = set(_numbers(chosen))
    assert len(closed) == len(chosen)
    left = [connection for connection in connections if connection.accepted.descriptor not in closed]
    assert all(number <= limit_per_address for number in Counter(each.accepted.peer.address for each in left).values())
    assert len(left) <= roomy(limit) or all(connection.idle_since is None for connection in left)
    busy = {connection.accepted for connection in connections if connection.idle_since is None}
    assert not busy & {connection for connection, reason in chosen if reason is Reason.ROOM}
    if len(connections) <= roomy(limit):
        assert all(reason is Reason.ADDRESS for _, reason in chosen)
