"""The committed stubs are what the protos say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from grpc_tools import protoc

from pixelpod.v1 import group_pb2, images_pb2

REPOSITORY = Path(__file__).parent.parent
PROTOS = sorted((REPOSITORY / "protos").rglob("*.proto"))


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    plugins = Path(sys.executable).parent
    arguments = [
        "protoc",
        f"-I{REPOSITORY / 'protos'}",
        f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
        f"--python_out={folder}",
        f"--grpc_python_out={folder}",
        f"--mypy_out=quiet:{folder}",
        f"--mypy_grpc_out=quiet:{folder}",
        *map(str, PROTOS),
    ]
    assert protoc.main(arguments) == 0
    return folder / "pixelpod" / "v1"


def test_committed_stubs_equal_regenerated_ones(regenerated: Path) -> None:
    committed = REPOSITORY / "pixelpod" / "v1"
    names = {path.name for path in regenerated.iterdir()}
    assert {path.name for path in committed.iterdir() if "_pb2" in path.name} == names
    changed = [name for name in sorted(names) if (committed / name).read_text() != (regenerated / name).read_text()]
    assert not changed, "run `make protos`"


def test_protos_pass_buf_lint() -> None:
    buf = Path(sys.executable).parent / "buf"
    result = subprocess.run([buf, "lint", REPOSITORY / "protos"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("module", [images_pb2, group_pb2], ids=["images", "group"])
def test_every_enum_starts_at_unspecified(module: object) -> None:
    enums = module.DESCRIPTOR.enum_types_by_name  # type: ignore[attr-defined]
    assert enums
    for name, enum in enums.items():
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
        assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"


def test_presence_tells_seed_zero_from_no_seed() -> None:
    assert images_pb2.GenerateRequest(seed=0).HasField("seed")
    assert not images_pb2.GenerateRequest().HasField("seed")
