"""Worlds of real rank processes over gloo, without a model, for tests of what ranks say to each other."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest
from torch import distributed as dist

ANSWER_SECONDS = 240.0


class World:
    """Rank processes that wait for something to do. Use `world`."""

    def __init__(self, pipes: list[Connection]) -> None:
        self._pipes = pipes

    def run(self, act: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run `act(*arguments)` on every rank, and return what each returned, in order.

        A rank that raised gives its exception; one that died gives None.
        """
        for pipe in self._pipes:
            pipe.send((act, arguments))
        return [_receive(pipe) for pipe in self._pipes]


@contextmanager
def world(ranks: int) -> Iterator[World]:
    """Start a world; its ranks end with the context."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        environment.setenv("GLOO_SOCKET_IFNAME", "lo")
        environment.setenv("OMP_NUM_THREADS", "1")  # ranks that all take all cores are in each other's way
        for rank in range(ranks):
            pipe, ranks_end = spawn.Pipe()
            process = spawn.Process(target=_be_rank, args=(rank, ranks, store.port, ranks_end), daemon=True)
            process.start()
            ranks_end.close()
            pipes.append(pipe)
            processes.append(process)
    yield World(pipes)
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.close()
        process.join(ANSWER_SECONDS)
        assert process.exitcode is not None, "a rank hangs"


def _receive(pipe: Connection) -> Any:
    assert pipe.poll(ANSWER_SECONDS), "a rank hangs"
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        return None


def _be_rank(rank: int, ranks: int, port: int, pipe: Connection) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    while True:
        try:
            act, arguments = pipe.recv()
        except EOFError:
            # Not the interpreter's own end, which could wait for ranks that are gone.
            os._exit(0)
        try:
            result = act(*arguments)
        except Exception as error:  # noqa: BLE001 -- handed to the test
            result = error
        pipe.send(result)
