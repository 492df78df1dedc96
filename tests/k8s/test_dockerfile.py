"""The images: what their Dockerfile says, the file trees that its lines make, and both roles started from those.

The frontend's tree is built in the default run, the group's, whose torch takes minutes, in the slow one; until then the
group runs from the tests' own environment, which has the same versions.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pixelpod.server.probes import LIVE
from tests.e2e.groups import write_quick_model
from tests.e2e.processes import NOT_SERVING, SERVING, Process, free_address, health_of, start, wait_serving, wait_until
from tests.k8s.container import contained, missing_for_containers
from tests.k8s.dockerfile import DOCKERFILE, INSTALLED, build_tree, image, stages
from tests.k8s.manifests import ALL_PODS, REPOSITORY

LIMIT_BYTES = 250_000_000
BASE_BYTES = 150_000_000
"""More than python:3.11-slim-bookworm has, unpacked."""

MISSING = missing_for_containers()
needs_containers = pytest.mark.skipif(bool(MISSING), reason=f"no mount namespaces here: {MISSING}")
needs_python = pytest.mark.skipif(
    f"python:{sys.version_info.major}.{sys.version_info.minor}-" not in DOCKERFILE.read_text(),
    reason="the images have another Python",
)
ROLES = pytest.mark.parametrize("role", ["frontend", "group"])


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    result = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@ROLES
def test_starts_without_a_shell_as_nobody(role: str) -> None:
    found = image(role)
    assert found.entrypoint == ["pixelpod"]
    assert found.command == ["serve" if role == "frontend" else "group"]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", found.user)
    assert found.environment["PATH"].startswith(f"{INSTALLED}/bin:")


@ROLES
def test_exposes_what_pods_listen_on(role: str) -> None:
    pods = [pod for _, _, pod in ALL_PODS if pod.serves and pod.is_frontend == (role == "frontend")]
    for pod in pods:
        declared = {port["containerPort"] for port in pod.main["ports"] if port["name"] != "rendezvous"}
        assert image(role).ports == declared


def test_everything_installed_is_pinned() -> None:
    """By the same constraints as the tests, and packages of the system by their versions."""
    lines = [rest for stage in stages().values() for word, rest in stage.instructions if word == "RUN"]
    for line in lines:
        if "pip" in line.split():
            assert "--constraint constraints.txt" in line
        if "apt-get" in line:
            installed = line.partition("--no-install-recommends ")[2].partition(" && ")[0].split()
            assert installed == [package for package in installed if "=" in package] != []
    assert all(re.fullmatch(r"python:3\.\d+-slim-\w+", s.base) for s in stages().values() if s.base not in stages())


def test_tcmalloc_is_preloaded_by_groups_only() -> None:
    assert image("group").environment["LD_PRELOAD"] == "libtcmalloc_minimal.so.4"
    assert "LD_PRELOAD" not in image("frontend").environment


def test_the_context_has_what_is_copied() -> None:
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [rest for stage in stages().values() for word, rest in stage.instructions if word == "COPY"]
    sources = {source for rest in copied if "--from" not in rest for source in rest.split()[:-1]}
    assert sources == allowed
    assert all((REPOSITORY / source).exists() for source in sources)


@pytest.fixture(scope="module")
def frontend_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tree("frontend", tmp_path_factory.mktemp("frontend"))


@needs_python
@pytest.mark.timeout(300)
def test_the_frontend_is_small_and_has_no_torch(frontend_tree: Path) -> None:
    folder = frontend_tree / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    packages = {file.name.partition("-")[0].lower() for file in folder.glob("*.dist-info")}
    assert {"pixelpod", "grpcio", "pydantic_settings", "prometheus_client"} <= packages
    assert not {"torch", "torch_tpu", "diffusers", "transformers", "numpy", "pillow", "pip"} & packages
    assert not (folder / "workers").exists()
    size_bytes = sum(file.lstat().st_size for file in frontend_tree.rglob("*") if file.is_file())
    print(f"the frontend's packages: {size_bytes / 1e6:.1f} MB")
    assert size_bytes + BASE_BYTES < LIMIT_BYTES


@needs_python
@pytest.mark.timeout(300)
def test_the_frontends_files_can_be_read_by_everybody_and_written_by_root(frontend_tree: Path) -> None:
    for file in frontend_tree.rglob("*"):
        mode = file.lstat().st_mode & 0o777
        assert file.is_symlink() or (mode & 0o444 == 0o444 and not mode & 0o022), file


@contextmanager
def running(role: str, program: list[str], folder: Path, *options: str) -> Iterator[tuple[Process, str, str]]:
    """Start a role as in its container; yield its process, its address and that of its probes."""
    listen, probes = free_address(), free_address()
    argv = [*program, *image(role).command, f"--listen={listen}", f"--probes={probes}", "--metrics=none", *options]
    command = contained(argv, image(role).environment, image(role).user, folder / "scratch")
    with start(command) as process:
        yield process, listen, probes


def _check_frontend(program: list[str], folder: Path) -> None:
    with running("frontend", program, folder, "--group=127.0.0.1:1") as (process, _, probes):
        wait_until(lambda: health_of(probes, LIVE) == SERVING, 60, lambda: process.log)
        assert health_of(probes) == NOT_SERVING
        assert process.stop(60, signal.SIGTERM) == 0
        assert "Traceback" not in process.log


def _check_group(program: list[str], model_file: Path, folder: Path) -> None:
    options = (f"--model={model_file}", "--ranks=2", "--device=cpu", "--max-restarts=0")
    with running("group", program, folder, *options) as (process, listen, probes):
        wait_serving(probes, 180, process)
        assert health_of(listen) == health_of(probes, LIVE) == SERVING
        assert process.stop(60, signal.SIGTERM) == 0
        assert "Traceback" not in process.log


@needs_python
@needs_containers
@pytest.mark.timeout(300)
def test_the_frontends_tree_serves(frontend_tree: Path, tmp_path: Path) -> None:
    _check_frontend([str(frontend_tree / "bin" / "pixelpod")], tmp_path)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Return a folder that everybody may read, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@needs_containers
@pytest.mark.timeout(300)
def test_a_group_serves_as_in_a_container(public_folder: Path) -> None:
    model_file = write_quick_model(public_folder / "model")
    ours = f"PYTHONPATH={REPOSITORY}"  # whatever checkout is installed here
    _check_group(["env", ours, sys.executable, "-m", "pixelpod"], model_file, public_folder)


@pytest.mark.slow
@needs_python
@needs_containers
@pytest.mark.timeout(1800)
def test_the_groups_tree_serves(public_folder: Path) -> None:
    tree = build_tree("group", public_folder)
    model_file = tree / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "workers/demo_model/model.yaml"
    _check_group([str(tree / "bin" / "pixelpod")], model_file, public_folder)
