"""How a launcher prepares ranks on TPU with each kind of torch_tpu: as it is, older, and unknown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.emulation import emulated_environment, require_emulated_tpu

WRAPPER = """
import os
number = os.environ.get("NODE_RANK", "0")
hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "localhost").split(",")
addresses = ",".join(f"{host}:{8070 + i}" for host in hosts for i in range(4))
print('TORCH_TPU_TOPOLOGY="2,2,1"')
print(f'TORCH_TPU_SLICEBUILDER_ADDRESSES="{addresses}"')
print('TORCH_TPU_XPROF_SESSION_ID="17"')
print(f"WORLD_SIZE={4 * len(hosts)}")
print(f'NODE_RANK="{number}"')
"""
"""Prints what the wrappers of older torch_tpu print on hosts of four chips."""

BROKEN_WRAPPER = "raise ValueError('No TPU devices found.')"

CODE = """
import json, os, sys
from workers.devices import device_named
from workers.errors import ModelRefused
before = dict(os.environ)
try:
    found = device_named("tpu").prepare_environment(**json.loads(sys.argv[1]))
except ModelRefused as refusal:
    found = str(refusal)
changed = {name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)}
assert not {name for name in changed if name.startswith(("TORCH_TPU_", "NODE"))}, changed
print(json.dumps(found))
"""


def prepare(variables: Mapping[str, str], **arguments: int) -> dict[str, str] | str:
    """Return the environment that a launcher prepares, or why it refuses."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH_TPU_", "TPU_"))}
    result = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(arguments)],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    prepared: dict[str, str] | str = json.loads(result.stdout.splitlines()[-1])
    return prepared


def older_torch_tpu(folder: Path, **launchers: str) -> dict[str, str]:
    """Write a torch_tpu 0.1.3 with these modules in its package of launch wrappers; return where to find it."""
    package = folder / "torch_tpu"
    modules = package / "_internal" / "distributed" / "launchers"
    modules.mkdir(parents=True)
    for path in (package, package / "_internal", modules.parent, modules):
        (path / "__init__.py").touch()
    for name, code in launchers.items():
        (modules / f"{name}.py").write_text(code)
    information = folder / "torch_tpu-0.1.3.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_tpu\nVersion: 0.1.3\n")
    return {"PYTHONPATH": str(folder)}


def test_torch_tpu_as_it_is() -> None:
    require_emulated_tpu()
    found = prepare(emulated_environment(), ranks=1)
    assert isinstance(found, dict), found
    assert found["TORCH_TPU_TOPOLOGY"] == "1,1,1"
    assert found["TORCH_TPU_SLICEBUILDER_ADDRESSES"].startswith("localhost:")
    assert not {"NNODES", "NODE_RANK", "MASTER_ADDR"} & found.keys()
    assert "this host can't run 3 ranks" in prepare(emulated_environment(), ranks=3)


def test_torch_tpu_as_it_is_on_several_hosts() -> None:
    require_emulated_tpu()
    hosts = {**emulated_environment(), "TPU_WORKER_HOSTNAMES": "a,b"}
    assert "several hosts need TORCH_TPU_TOPOLOGY" in prepare(hosts, ranks=4, nodes=2, node_rank=1)
    hosts["TORCH_TPU_TOPOLOGY"] = "2,4,1"
    found = prepare(hosts, ranks=4, nodes=2, node_rank=1)
    assert isinstance(found, dict), found
    assert found["TORCH_TPU_SLICEBUILDER_ADDRESSES"] == ",".join(f"{h}:{p}" for h in "ab" for p in range(8070, 8074))
    assert (found["NNODES"], found["NODE_RANK"]) == ("2", "1")
    assert "TPU_WORKER_HOSTNAMES (2" in prepare(hosts, ranks=4, nodes=3, node_rank=1)


def test_what_is_set_stays() -> None:
    require_emulated_tpu()
    set_before = {"TORCH_TPU_TOPOLOGY": "4,4,4", "TORCH_TPU_SLICEBUILDER_ADDRESSES": "here:1"}
    found = prepare({**emulated_environment(), **set_before}, ranks=1)
    assert isinstance(found, dict), found
    assert not found.keys() & set_before.keys()


def test_older_torch_tpu(tmp_path: Path) -> None:
    older = older_torch_tpu(tmp_path, singlehost_wrapper=WRAPPER, multihost_wrapper=WRAPPER)
    assert prepare(older, ranks=4) == {
        "NODE_RANK": "0",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": "localhost:8070,localhost:8071,localhost:8072,localhost:8073",
        "TORCH_TPU_TOPOLOGY": "2,2,1",
        "TORCH_TPU_XPROF_SESSION_ID": "17",
    }
    hosts = {**older, "TPU_WORKER_HOSTNAMES": "a,b", "TORCH_TPU_TOPOLOGY": "2,4,1"}
    several = prepare(hosts, ranks=4, nodes=2, node_rank=1)
    assert isinstance(several, dict), several
    assert several["NODE_RANK"] == "1"
    assert several["TORCH_TPU_SLICEBUILDER_ADDRESSES"].endswith("b:8073")
    assert "NODE_RANK is 0" in prepare({**hosts, "NODE_RANK": "0"}, ranks=4, nodes=2, node_rank=1)


def test_older_torch_tpu_takes_all_devices_and_keeps_what_is_set(tmp_path: Path) -> None:
    older = older_torch_tpu(tmp_path, singlehost_wrapper=WRAPPER)
    assert "torch_tpu 0.1.3 prepares all 4 devices, but the group has 1 ranks" in prepare(older, ranks=1)
    by_hand = {"TORCH_TPU_TOPOLOGY": "1,1,1", "TORCH_TPU_SLICEBUILDER_ADDRESSES": "localhost:1"}
    found = prepare({**older, **by_hand}, ranks=1)
    assert isinstance(found, dict), found
    assert not found.keys() & by_hand.keys()


def test_older_torch_tpu_without_chips(tmp_path: Path) -> None:
    older = older_torch_tpu(tmp_path, singlehost_wrapper=BROKEN_WRAPPER)
    assert "singlehost_wrapper failed: ValueError: No TPU devices found." in prepare(older, ranks=1)


def test_torch_tpu_of_an_unknown_kind(tmp_path: Path) -> None:
    refusal = prepare(older_torch_tpu(tmp_path), ranks=1)
    assert "torch_tpu 0.1.3 has no way to launch ranks" in refusal
    assert "supported are 0.2 and later" in refusal
