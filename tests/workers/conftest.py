"""Tiny models for tests of the group, each written once a session."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from workers.model_file import FamilyName, ModelFile, load_model_file

if TYPE_CHECKING:
    from workers.control import ControlChannel


@pytest.fixture(scope="session")
def tiny_model_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[FamilyName], Path]:
    """Return a function that gives the path of a family's tiny model file. Not for writing: tests share it."""
    from workers.tiny_checkpoints import write_tiny_checkpoint  # it imports torch, which few tests here need

    folder = tmp_path_factory.mktemp("tiny-models")
    return functools.cache(lambda family: write_tiny_checkpoint(family, folder / family))


@pytest.fixture(scope="session")
def tiny_model(tiny_model_file: Callable[[FamilyName], Path]) -> Callable[[FamilyName], ModelFile]:
    """Return a function that gives a family's tiny model, loaded from its file."""
    return lambda family: load_model_file(tiny_model_file(family))


@pytest.fixture(scope="module")
def channel() -> Iterator[ControlChannel]:
    """Return the control channel of a world of one rank."""
    from torch import distributed as dist

    from workers.control import ControlChannel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield ControlChannel(timeout_seconds=60)
    dist.destroy_process_group()
