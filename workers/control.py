"""The control channel: rank 0's one ordered stream of commands to all ranks of its world (law 1).

Commands travel as protobuf bytes in gloo broadcasts, never as pickles. Most fit into one frame of fixed size, so that
a command costs one broadcast; what is left of a longer one follows in a second broadcast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from google.protobuf.message import DecodeError

from pixelpod.v1 import group_pb2

FRAME_BYTES = 4096
"""Holds the commands of a few short prompts; larger frames make every decision dearer."""

_LENGTH_BYTES = 4
_INLINE_BYTES = FRAME_BYTES - _LENGTH_BYTES


class WorldBroken(Exception):
    """The ranks of this world no longer work together: every one of them has to end."""


class ControlChannel:
    """Carries commands from rank 0 to all ranks, and small numbers from all ranks to rank 0.

    All ranks must make the same calls in the same order. Every method raises `WorldBroken` when a rank is gone, when
    it hears nothing within the timeout, or when a command is missing. A rank by itself speaks to nobody.
    """

    def __init__(self, timeout_seconds: float) -> None:
        """Join the channel; needs torch's default process group, and every rank of it."""
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()
        self._sequence = 0
        self._frame = torch.zeros(FRAME_BYTES, dtype=torch.uint8)

    def send(self, command: group_pb2.Command) -> None:
        """Number `command` and broadcast it. Only rank 0 calls this."""
        self._sequence += 1
        command.sequence = self._sequence
        if self.ranks == 1:
            return
        payload = command.SerializeToString()
        head = len(payload).to_bytes(_LENGTH_BYTES, "little") + payload[:_INLINE_BYTES]
        rest = payload[_INLINE_BYTES:]
        self._frame.numpy()[: len(head)] = np.frombuffer(head, dtype=np.uint8)
        with _world_breaks("sending a command"):
            dist.broadcast(self._frame, src=0, group=self._group)
            if rest:
                dist.broadcast(torch.frombuffer(bytearray(rest), dtype=torch.uint8), src=0, group=self._group)

    def receive(self, patience_seconds: float | None = None) -> group_pb2.Command:
        """Wait for rank 0's next command, for a time other than the channel's. The ranks after 0 call this."""
        with _world_breaks("waiting for a command"):
            _wait(dist.broadcast(self._frame, src=0, group=self._group, async_op=True), patience_seconds)
            frame = self._frame.numpy().tobytes()
            length = int.from_bytes(frame[:_LENGTH_BYTES], "little")
            payload = frame[_LENGTH_BYTES : _LENGTH_BYTES + length]
            if length > _INLINE_BYTES:
                rest = torch.empty(length - _INLINE_BYTES, dtype=torch.uint8)
                dist.broadcast(rest, src=0, group=self._group)
                payload += rest.numpy().tobytes()
        return self._parse(payload)

    def gather(self, number: int, patience_seconds: float | None = None) -> list[int]:
        """Give `number` (64 bits) to rank 0. Returns there all ranks' numbers in the order of the ranks, else none."""
        return [number for (number,) in self.gather_rows([number], patience_seconds)]

    def gather_rows(self, numbers: Sequence[int], patience_seconds: float | None = None) -> list[list[int]]:
        """Give `numbers`, as many on every rank, to rank 0. Returns there a row for each rank, else none."""
        if self.ranks == 1:
            return [list(numbers)]
        mine = torch.tensor(numbers, dtype=torch.int64)
        gathered = [torch.empty_like(mine) for _ in range(self.ranks)] if self.rank == 0 else None
        with _world_breaks("gathering numbers"):
            _wait(dist.gather(mine, gathered, dst=0, group=self._group, async_op=True), patience_seconds)
        return [row.tolist() for row in gathered or ()]

    def _parse(self, payload: bytes) -> group_pb2.Command:
        self._sequence += 1
        try:
            command = group_pb2.Command.FromString(payload)
        except DecodeError as error:
            raise WorldBroken(f"command {self._sequence} is no protobuf message") from error
        if command.sequence != self._sequence:
            raise WorldBroken(f"command {command.sequence} came where {self._sequence} was due")
        return command


def _wait(work: dist.Work, patience_seconds: float | None) -> None:
    if patience_seconds is None:
        work.wait()
    else:
        work.wait(timedelta(seconds=patience_seconds))


@contextmanager
def _world_breaks(doing: str) -> Iterator[None]:
    """Turn gloo's errors, which say that a rank is gone or silent, into `WorldBroken`."""
    try:
        yield
    except RuntimeError as error:
        raise WorldBroken(f"the control group failed while {doing}: {_gist(error)}") from error


def _gist(error: RuntimeError) -> str:
    """Return what gloo says happened: its messages begin with a place in its source and end with advice."""
    return re.sub(r"^\[\S+\] ", "", str(error)).split(". ")[0]
