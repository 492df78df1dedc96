"""A slice of two hosts as Kubernetes runs it: the manifest's pods, LeaderWorkerSet's variables, network namespaces.

LeaderWorkerSet is the test itself: when a pod ends, it ends the other one too, and starts both again.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.groups import request, write_quick_model
from tests.e2e.namespaces import Host, missing_for_hosts, two_hosts
from tests.e2e.processes import Process, start
from tests.k8s.manifests import Pod, build, environment, expand, pods

READY_SECONDS = 60.0
NAMES = (("group-0", "group-0.group.pixelpod"), ("group-0-1", "group-0-1.group.pixelpod"))
"""What the DNS of a cluster would tell, for a LeaderWorkerSet called group in the namespace pixelpod."""

MISSING = missing_for_hosts()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no namespaces here: {MISSING}")


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_quick_model(tmp_path_factory.mktemp("flux2"))


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    with two_hosts(NAMES, tmp_path) as made:
        yield made


@contextmanager
def pod(host: Host, index: int, model_file: Path) -> Iterator[Process]:
    """Run the pod of this index on a host, without what needs TPUs or Secrets."""
    role = "workerTemplate" if index else "leaderTemplate"
    (template,) = (found for found in pods(build("v6e-16-multihost")) if found.role == role)
    variables = _variables(template, host, index)
    arguments = [expand(argument, variables) for argument in template.main["args"]]
    ours = {name: value for name, value in variables.items() if "_TLS_" not in name and "CACHE_DIR" not in name}
    ours |= {
        "PIXELPOD_GROUP_MODEL": str(model_file),
        "PIXELPOD_GROUP_DEVICE": "cpu",
        "PIXELPOD_GROUP_RANKS": "1",
        "PIXELPOD_GROUP_INSECURE": "true",
        "PIXELPOD_GROUP_HEARTBEAT_SECONDS": "0.5",
        "OMP_NUM_THREADS": "1",  # each takes its host for its own, with all cores
    }
    with start(host.command(sys.executable, "-m", "pixelpod", *arguments), ours) as process:
        yield process


def _variables(template: Pod, host: Host, index: int) -> dict[str, str]:
    given = {"LWS_LEADER_ADDRESS": NAMES[0][1], "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": str(index)}
    name = "metadata.labels['leaderworkerset.sigs.k8s.io/name']"
    return environment(template.main, given, {name: "group", "status.podIP": host.address})


@contextmanager
def slice_of(hosts: tuple[Host, Host], model_file: Path) -> Iterator[tuple[Process, Process]]:
    """Run the leader and the worker, the worker first: it has to wait."""
    with pod(hosts[1], 1, model_file) as worker, pod(hosts[0], 0, model_file) as leader:
        yield leader, worker


def ask(host: Host, leader: Process) -> dict[str, Any]:
    """Return what the group tells of itself and the image that it makes, asked from another host."""
    argv = [sys.executable, "-m", "tests.e2e.ask_group", f"{NAMES[0][1]}:7861", str(READY_SECONDS)]
    argv.append(request().SerializeToString().hex())
    with start(host.command(*argv)) as asking:
        code = asking.wait(READY_SECONDS + 30)
        assert code == 0, f"{asking.log}\n{leader.log}"
        answer: dict[str, Any] = json.loads(asking.log.splitlines()[-1])
        return answer


@pytest.mark.timeout(4 * READY_SECONDS)
def test_a_slice_on_two_hosts_lives_and_dies_as_a_whole(hosts: tuple[Host, Host], model_file: Path) -> None:
    began = time.monotonic()
    with slice_of(hosts, model_file) as (leader, worker):
        first = ask(hosts[1], leader)
        assert (first["ranks"], first["group"]) == (2, "group")
        worker.send(signal.SIGKILL)
        assert leader.wait(10) == 1
    with slice_of(hosts, model_file) as (leader, worker):
        second = ask(hosts[1], leader)
        assert second["epoch"] > first["epoch"]
        leader.send(signal.SIGKILL)
        assert worker.wait(10) == 1
    with slice_of(hosts, model_file) as (leader, worker):
        third = ask(hosts[1], leader)
        assert first["image"] == second["image"] == third["image"]
        # Kubernetes ends all pods of a slice at once: the worker leaves when the leader says so.
        worker.send(signal.SIGTERM)
        assert leader.stop() == 0
        assert worker.wait(10) == 0
    print(f"three lives of a slice took {time.monotonic() - began:.1f} s")
