"""Checkpoints to spoil: each is written once, and copied for every test."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.workers.checkpoint.spoiling import MakeModel
from workers.model_file import FamilyName, ModelFile, load_model_file
from workers.tiny_checkpoints import write_tiny_checkpoint


@pytest.fixture(scope="package")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Mapping[FamilyName, Path]:
    folder = tmp_path_factory.mktemp("originals")
    return {family: write_tiny_checkpoint(family, folder / family).parent for family in FamilyName}


@pytest.fixture
def copied(originals: Mapping[FamilyName, Path], tmp_path: Path) -> MakeModel:
    """Return a model whose files the test may spoil."""

    def copy(family: FamilyName) -> ModelFile:
        shutil.copytree(originals[family], tmp_path / family)
        return load_model_file(tmp_path / family / "model.yaml")

    return copy
