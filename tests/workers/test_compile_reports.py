"""What ranks compiled reaches rank 0, and so does the end of warm-up the others; between real processes over gloo."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pixelpod.v1 import group_pb2
from tests.workers.worlds import World, world
from workers.compile_reports import gather_reports, total
from workers.compiles import Compiles, CompileTracker
from workers.control import ControlChannel
from workers.follower import follow_warm_up

TIMEOUT_SECONDS = 10.0


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[World]:
    with world(ranks=2) as ranks:
        yield ranks


def report() -> list[dict[str, Compiles]]:
    channel = ControlChannel(TIMEOUT_SECONDS)
    mine = {"transformer": Compiles(1 + channel.rank, 0, 2.5), "vae": Compiles(0, 3, 0.25)} if channel.rank else {}
    return gather_reports(channel, mine)


def test_rank_0_learns_what_each_rank_compiled(two_ranks: World) -> None:
    (idle, busy), nothing = two_ranks.run(report)
    assert nothing == []
    assert total(idle) == Compiles()
    assert busy["transformer"] == Compiles(2, 0, 2.5)
    assert busy["text_encoder"] == Compiles()
    assert total(busy) == Compiles(2, 3, 2.75)


def end_warm_up(command: bytes) -> bool | None:
    channel = ControlChannel(TIMEOUT_SECONDS)
    with CompileTracker() as compiles:
        if channel.rank:
            runner: Any = SimpleNamespace(compiles=compiles)  # no batch comes
            return follow_warm_up(channel, runner)
        message = group_pb2.Command.FromString(command)
        channel.send(message)
        if message.HasField("heartbeat"):
            gather_reports(channel, {})
    return None


@pytest.mark.parametrize(
    ("command", "serves"),
    [
        (group_pb2.Command(heartbeat=group_pb2.Heartbeat()), True),
        (group_pb2.Command(shutdown=group_pb2.Shutdown()), False),
    ],
)
def test_followers_learn_how_warm_up_ended(two_ranks: World, command: group_pb2.Command, serves: bool) -> None:
    assert two_ranks.run(end_warm_up, command.SerializeToString()) == [None, serves]
