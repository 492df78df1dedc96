"""What a launcher refuses before it starts anything. tests/e2e starts whole groups."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pixelpod.server.reloading import FileRefused
from pixelpod.server.transport import AddressInUse, PlainTextRefused
from tests.certificates import Authority
from workers.errors import ModelRefused
from workers.launcher import launch
from workers.model_file import FamilyName
from workers.settings import GroupSettings

NONE_TAKEN = {"listen": "127.0.0.1:0", "metrics": "127.0.0.1:0"}


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        pytest.fail("a world was started")

    monkeypatch.setattr("workers.launcher._run_world", fail)


@pytest.mark.parametrize("taken", ["listen", "metrics"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_addresses_in_use(tiny_model_file: Callable[[FamilyName], Path], taken: str, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{host}:{server.getsockname()[1]}"
        settings = GroupSettings(model=tiny_model_file(FamilyName.SD3), insecure=True, **NONE_TAKEN | {taken: address})
        with pytest.raises(AddressInUse, match=f"cannot listen on {address}"):
            launch(settings)


@pytest.mark.parametrize("address", ["192.0.2.1:7861", "no-such-host.invalid:7861"])
def test_addresses_that_are_none_of_this_machine(tiny_model_file: Callable[[FamilyName], Path], address: str) -> None:
    settings = GroupSettings(model=tiny_model_file(FamilyName.SD3), insecure=True, **NONE_TAKEN | {"listen": address})
    with pytest.raises(AddressInUse, match=f"cannot listen on {address}"):
        launch(settings)


def test_plain_text_beyond_loopback_is_refused_and_tls_is_not(
    tiny_model_file: Callable[[FamilyName], Path], tmp_path: Path
) -> None:
    values = {"model": tiny_model_file(FamilyName.SD3), **NONE_TAKEN, "listen": "192.0.2.1:7861"}
    with pytest.raises(PlainTextRefused, match=r"192\.0\.2\.1:7861 is not loopback"):
        launch(GroupSettings(**values))
    pair = Authority(tmp_path).issue()
    with pytest.raises(AddressInUse):
        launch(GroupSettings(tls_cert_file=pair.cert_file, tls_key_file=pair.key_file, **values))


def test_files_of_access_that_can_not_be_used(tiny_model_file: Callable[[FamilyName], Path], tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue()
    for files in (
        {"tokens_file": tmp_path / "absent"},
        {"tls_cert_file": pair.cert_file, "tls_key_file": tmp_path / "absent"},
        {"metrics_tls_cert_file": pair.cert_file, "metrics_tls_key_file": tmp_path / "absent"},
    ):
        with pytest.raises(FileRefused, match="absent: No such file"):
            launch(GroupSettings(model=tiny_model_file(FamilyName.SD3), **files, **NONE_TAKEN))


def test_models_that_cannot_be_served(tiny_model_file: Callable[[FamilyName], Path], tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"nowhere\.yaml"):
        launch(GroupSettings(model=tmp_path / "nowhere.yaml", **NONE_TAKEN))
    with pytest.raises(ModelRefused, match="sd3"):
        launch(GroupSettings(model=tiny_model_file(FamilyName.SD3), ranks=2, **NONE_TAKEN))
    with pytest.raises(ModelRefused, match="1, 2"):
        launch(GroupSettings(model=tiny_model_file(FamilyName.FLUX2), ranks=5, **NONE_TAKEN))


@pytest.fixture
def _environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.mark.usefixtures("_environment_is_restored")
def test_cache_folder_is_made_and_handed_to_the_ranks(
    tiny_model_file: Callable[[FamilyName], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.launcher._run_world", lambda *_: 0)
    cache = tmp_path / "new" / "cache"
    assert launch(GroupSettings(model=tiny_model_file(FamilyName.SD3), cache_dir=cache, **NONE_TAKEN)) == 0
    assert cache.is_dir()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(cache / "torch")


@pytest.mark.usefixtures("_environment_is_restored")
def test_cache_folder_that_cannot_be_written(tiny_model_file: Callable[[FamilyName], Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = tmp_path / "file" / "cache"
    with pytest.raises(ModelRefused, match=f"cache folder {cache}"):
        launch(GroupSettings(model=tiny_model_file(FamilyName.SD3), cache_dir=cache, **NONE_TAKEN))


def test_all_nodes_count_as_ranks(tiny_model_file: Callable[[FamilyName], Path]) -> None:
    nodes = {"nodes": 5, "rendezvous": "127.0.0.1:0"}
    with pytest.raises(ModelRefused, match="1, 2"):
        launch(GroupSettings(model=tiny_model_file(FamilyName.FLUX2), **nodes, **NONE_TAKEN))


@pytest.mark.usefixtures("_environment_is_restored")
def test_only_node_0_listens(tiny_model_file: Callable[[FamilyName], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        node = {"model": tiny_model_file(FamilyName.FLUX2), "nodes": 2, "rendezvous": address, **NONE_TAKEN}
        with pytest.raises(AddressInUse, match=f"cannot listen on {address}"):
            launch(GroupSettings(**node))
        monkeypatch.setattr("workers.launcher._run_world", lambda *_: 0)
        assert launch(GroupSettings(**node, node_rank=1)) == 0


@pytest.mark.usefixtures("_environment_is_restored")
@pytest.mark.parametrize(
    ("settings", "interface"),
    [
        ({}, "lo"),
        ({"nodes": 2, "node_rank": 1, "rendezvous": "[::1]:29400"}, "lo"),
        ({"nodes": 2, "node_rank": 1, "rendezvous": "node0:29400"}, "eth7"),
    ],
)
def test_ranks_of_one_host_stay_on_loopback(
    tiny_model_file: Callable[[FamilyName], Path],
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, object],
    interface: str,
) -> None:
    monkeypatch.setattr("workers.launcher._run_world", lambda *_: 0)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth7"
    assert launch(GroupSettings(model=tiny_model_file(FamilyName.FLUX2), **settings, **NONE_TAKEN)) == 0
    assert os.environ["GLOO_SOCKET_IFNAME"] == interface


def test_refusing_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import workers.launcher, workers.rank; print('imported')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "imported", result.stderr
