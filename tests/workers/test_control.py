"""The control channel between real processes over gloo."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from torch import distributed as dist

from pixelpod.v1 import group_pb2
from tests.workers.worlds import World, world
from workers.control import FRAME_BYTES, ControlChannel, WorldBroken

TIMEOUT_SECONDS = 3.0


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[World]:
    with world(ranks=2) as ranks:
        yield ranks


def batch(prompt: str) -> group_pb2.Command:
    return group_pb2.Command(run_batch=group_pb2.RunBatch(slots=[group_pb2.Slot(prompt=prompt, seed=2**64 - 1)]))


def commands() -> list[group_pb2.Command]:
    """Return commands of every size around the frame's, and some after the long ones."""
    overhead = len(batch("").SerializeToString()) + 16
    lengths = [0, 1, *range(FRAME_BYTES - overhead, FRAME_BYTES + 8), 4 * FRAME_BYTES, 100_000]
    return [
        group_pb2.Command(heartbeat=group_pb2.Heartbeat()),
        *(batch("ü" * (length // 2) + "x" * (length % 2)) for length in lengths),
        group_pb2.Command(decision=group_pb2.Decision(verdict=group_pb2.VERDICT_ABORT)),
        group_pb2.Command(shutdown=group_pb2.Shutdown()),
    ]


def exchange() -> list[bytes]:
    """Send or receive all commands, with a gather after each. Return what went over the channel."""
    channel, seen = ControlChannel(TIMEOUT_SECONDS), []
    for number, command in enumerate(commands()):
        if channel.rank == 0:
            channel.send(command)
        else:
            command = channel.receive()
        seen.append(command.SerializeToString())
        gathered = channel.gather(number * 2**40 - channel.rank)
        assert gathered == ([number * 2**40 - rank for rank in range(channel.ranks)] if channel.rank == 0 else [])
    return seen


def test_all_ranks_see_the_same_commands_in_order(two_ranks: World) -> None:
    sent, received = two_ranks.run(exchange)
    assert received == sent
    assert [group_pb2.Command.FromString(data).sequence for data in sent] == list(range(1, len(commands()) + 1))


def lose_rank(lost: int) -> float:
    """Have one rank die. Return how long the other went on."""
    channel = ControlChannel(60.0)
    channel.gather(0)
    if channel.rank == lost:
        os._exit(9)
    started = time.monotonic()
    try:
        while True:
            if channel.rank == 0:
                channel.send(group_pb2.Command(heartbeat=group_pb2.Heartbeat()))
            else:
                channel.receive()
    except WorldBroken:
        return time.monotonic() - started


@pytest.mark.parametrize("lost", [0, 1])
def test_a_dead_rank_breaks_the_world_at_once(lost: int) -> None:
    with world(ranks=2) as ranks:
        answers = ranks.run(lose_rank, lost)
    assert answers[lost] is None
    assert answers[1 - lost] < 5


def fall_silent() -> float:
    channel = ControlChannel(TIMEOUT_SECONDS)
    started = waited = time.monotonic()
    if channel.rank == 1:
        try:
            channel.receive()
        except WorldBroken:
            waited = time.monotonic()
    dist.barrier()  # rank 0 lives on all the while, and says nothing
    return waited - started


def test_silence_beyond_the_timeout_breaks_the_world(two_ranks: World) -> None:
    _, waited = two_ranks.run(fall_silent)
    assert TIMEOUT_SECONDS - 0.5 < waited < TIMEOUT_SECONDS + 5


def skip_a_command() -> str:
    channel = ControlChannel(TIMEOUT_SECONDS)
    if channel.rank == 0:
        channel._sequence += 1
        channel.send(group_pb2.Command(heartbeat=group_pb2.Heartbeat()))
        return ""
    try:
        channel.receive()
    except WorldBroken as broken:
        return str(broken)
    return "nothing noticed"


def test_a_gap_in_the_sequence_breaks_the_world(two_ranks: World) -> None:
    assert two_ranks.run(skip_a_command)[1] == "command 2 came where 1 was due"


def speak_to_nobody() -> tuple[list[int], list[list[int]]]:
    channel, command = ControlChannel(TIMEOUT_SECONDS), batch("a fox")
    dist.destroy_process_group()  # any collective would raise now
    channel.send(command)
    return [command.sequence, *channel.gather(7)], channel.gather_rows([1, 2])


def test_a_rank_by_itself_needs_no_collective() -> None:
    with world(ranks=1) as alone:
        assert alone.run(speak_to_nobody) == [([1, 7], [[1, 2]])]
