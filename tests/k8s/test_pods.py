"""What pods may do, need and are given time for."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import yaml

from tests.k8s.manifests import ALL_PODS, K8S, OVERLAYS, REPOSITORY, Pod, build, of_kind, pods
from tests.workers.shipped_models import MODEL_FILES, with_configs, with_hollow_checkpoint
from workers.checkpoint import verify_checkpoint
from workers.model_file import FamilyName, ModelFile, load_model_file
from workers.plan import Chip, make_plan

PODS = pytest.mark.parametrize("pod", [pod for _, _, pod in ALL_PODS], ids=[name for name, _, _ in ALL_PODS])
GROUPS = [(name, pod) for name, _, pod in ALL_PODS if not pod.is_frontend]
TPU_GROUPS = [(name, pod) for name, pod in GROUPS if pod.setting("device") == "tpu"]
ON_TPU = pytest.mark.parametrize("pod", [pod for _, pod in TPU_GROUPS], ids=[name for name, _ in TPU_GROUPS])

CHIPS = {"tpu-v6e-slice": Chip.V6E, "tpu7x": Chip.V7X}
DEVICES_A_CHIP = {Chip.V6E: 1, Chip.V7X: 2}
HOST_CHIPS = {
    ("tpu-v6e-slice", "1x1"): 1,
    ("tpu-v6e-slice", "2x4"): 8,
    ("tpu-v6e-slice", "4x4"): 4,
    ("tpu7x", "2x2x1"): 4,
}
"""Chips of one host, by accelerator and topology."""

GRACE_FACTOR = 1.5
READ_BYTES_PER_SECOND = 0.25e9
COMPILE_SECONDS = 120.0
STARTUP_FACTOR = 2.0
"""The assumptions of docs/kubernetes.md about reading weights, compiling a graph, and how wrong they may be."""


@PODS
def test_pods_are_restricted(pod: Pod) -> None:
    assert pod.spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    } | ({} if pod.is_frontend else {"fsGroupChangePolicy": "OnRootMismatch"})
    assert (pod.spec["automountServiceAccountToken"], pod.spec["enableServiceLinks"]) == (False, False)
    for container in pod.containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()


@PODS
def test_user_is_the_images(pod: Pod) -> None:
    users = re.findall(r"^USER (.+)$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    context = pod.spec["securityContext"]
    assert users[-1] == f"{context['runAsUser']}:{context['runAsGroup']}"


@PODS
def test_grace_follows_from_the_longest_request(pod: Pod) -> None:
    longest = float(pod.setting("max_request_seconds"))
    assert float(pod.setting("drain_seconds")) == longest
    pre_stop = pod.main.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert (pre_stop > 0) == pod.is_frontend
    grace = pod.spec["terminationGracePeriodSeconds"]
    assert grace == math.ceil(GRACE_FACTOR * (pre_stop + longest))
    delay = float(pod.setting("drain_delay_seconds")) if pod.is_frontend else 0.0
    assert pre_stop + delay + longest + 10 < grace


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_frontends_allow_what_groups_allow(overlay: str) -> None:
    assert len({pod.setting("max_request_seconds") for pod in pods(build(overlay))}) == 1


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_frontends_are_replaced_without_a_gap(overlay: str) -> None:
    (deployment,) = of_kind(build(overlay), "Deployment")
    rolling = deployment["spec"]["strategy"]["rollingUpdate"]
    assert (rolling["maxUnavailable"], rolling["maxSurge"]) == (0, 1)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_groups_are_replaced_one_at_a_time(overlay: str) -> None:
    objects = build(overlay)
    for group in of_kind(objects, "StatefulSet"):
        assert group["spec"]["updateStrategy"] == {"type": "RollingUpdate"}  # by default one, which must be ready first
    for group in of_kind(objects, "LeaderWorkerSet"):
        rolling = group["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
        assert rolling == {"maxUnavailable": 1, "maxSurge": 0}
        assert group["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"


@pytest.mark.parametrize("pod", [pod for _, pod in GROUPS], ids=[name for name, _ in GROUPS])
def test_kubernetes_restarts_worlds(pod: Pod) -> None:
    assert pod.flag("max-restarts") == "0"


@PODS
def test_names_are_host_names(pod: Pod) -> None:
    """A StatefulSet's and a LeaderWorkerSet's name becomes part of host names, which dots would split."""
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?", pod.owner["metadata"]["name"])


@pytest.mark.parametrize("pod", [pod for _, pod in GROUPS], ids=[name for name, _ in GROUPS])
def test_shared_memory_is_memory(pod: Pod) -> None:
    (volume,) = (volume for volume in pod.spec["volumes"] if volume["name"] == "shm")
    assert volume["emptyDir"]["medium"] == "Memory"
    assert next(mount for mount in pod.main["volumeMounts"] if mount["name"] == "shm")["mountPath"] == "/dev/shm"


def _nodes(pod: Pod) -> int:
    template = pod.owner["spec"].get("leaderWorkerTemplate")
    return int(template["size"]) if template else 1


@ON_TPU
def test_tpu_chips_are_those_of_the_host_and_of_the_ranks(pod: Pod) -> None:
    selector, resources = pod.spec["nodeSelector"], pod.main["resources"]
    accelerator = selector["cloud.google.com/gke-tpu-accelerator"]
    chips = int(resources["limits"]["google.com/tpu"])
    assert resources["requests"]["google.com/tpu"] == resources["limits"]["google.com/tpu"]
    assert chips == HOST_CHIPS[accelerator, selector["cloud.google.com/gke-tpu-topology"]]
    assert chips * DEVICES_A_CHIP[CHIPS[accelerator]] == int(pod.setting("ranks"))
    dimensions = selector["cloud.google.com/gke-tpu-topology"].split("x")
    assert math.prod(map(int, dimensions)) == chips * _nodes(pod)
    assert {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"} in pod.spec["tolerations"]
    assert (_nodes(pod) > 1) != ("node.kubernetes.io/instance-type" in selector)


@ON_TPU
def test_a_slice_tells_its_topology(pod: Pod) -> None:
    variables = {item["name"]: item.get("value") for item in pod.main["env"]}
    if _nodes(pod) == 1:
        assert "TORCH_TPU_TOPOLOGY" not in variables
    else:
        wanted = pod.spec["nodeSelector"]["cloud.google.com/gke-tpu-topology"].replace("x", ",") + ",1"
        assert variables["TORCH_TPU_TOPOLOGY"] == wanted
        assert variables["JOB_COMPLETION_INDEX"] == "$(LWS_WORKER_INDEX)"
        assert not {"TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"} & variables.keys()  # or LeaderWorkerSet sets neither


def _model(pod: Pod, folder: Any) -> ModelFile:
    (volume,) = (volume for volume in pod.spec["volumes"] if volume["name"] == "model")
    for _, objects, _ in ALL_PODS:
        for item in of_kind(objects, "ConfigMap"):
            if item["metadata"]["name"] == volume["configMap"]["name"]:
                (folder / "model.yaml").write_text(item["data"]["model.yaml"])
    return load_model_file(folder / "model.yaml")


def _chip(pod: Pod) -> Chip:
    return CHIPS[pod.spec["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"]]


@ON_TPU
def test_the_model_suits_its_ranks_and_chips(pod: Pod, tmp_path: Any) -> None:
    model, ranks = _model(pod, tmp_path), int(pod.setting("ranks")) * _nodes(pod)
    verify_checkpoint(with_hollow_checkpoint(model, tmp_path / "checkpoint"), ranks)
    assert make_plan(with_configs(model), _chip(pod), ranks).refusal() == ""


@ON_TPU
def test_weights_are_where_the_model_file_says(pod: Pod, tmp_path: Any) -> None:
    path = str(_model(pod, tmp_path).path)
    (mount,) = (mount for mount in pod.main["volumeMounts"] if mount["name"] == "weights")
    assert mount == {"name": "weights", "mountPath": "/models", "readOnly": True}
    assert path.startswith("/models/")
    for container in pod.spec.get("initContainers", []):  # what a host downloads, once
        assert {item["name"]: item.get("value") for item in container["env"]}["HUB_FOLDER"] == path
    volumes = [volume for volume in pod.spec["volumes"] if volume["name"] == "weights"]
    assert ("weights" in pod.claims) != (bool(volumes) and volumes[0]["persistentVolumeClaim"]["readOnly"])


@ON_TPU
def test_compiled_programs_are_kept_by_model_version_and_chip(pod: Pod, tmp_path: Any) -> None:
    version = pod.main["image"].rpartition(":")[2]
    expected = f"/var/cache/pixelpod/{_model(pod, tmp_path).name}/{version}/{_chip(pod)}"
    assert pod.setting("cache_dir") == expected
    assert "compile-cache" in pod.claims  # of its own: no two groups fill one cache at once


@ON_TPU
def test_startup_has_time_for_a_cold_compile(pod: Pod, tmp_path: Any) -> None:
    model = _model(pod, tmp_path)
    plan = make_plan(with_configs(model), _chip(pod), int(pod.setting("ranks")) * _nodes(pod))
    weights_bytes = sum(component.total_bytes for component in plan.components)
    batches = 2 if model.family is FamilyName.SD3 else 1  # with guidance and without
    graphs = sum(len(b.batch_sizes) for b in model.buckets) * len(model.limits.max_sequence_lengths) * batches
    seconds = STARTUP_FACTOR * (weights_bytes / READ_BYTES_PER_SECOND + graphs * COMPILE_SECONDS)
    loading = int(pod.setting("loading_timeout_seconds"))
    assert loading == math.ceil(seconds / 10) * 10
    if pod.serves:
        probe = pod.main["startupProbe"]
        joining = int(pod.setting("join_timeout_seconds")) if _nodes(pod) > 1 else 0
        assert probe["failureThreshold"] * probe["periodSeconds"] == loading + joining


def test_model_files_are_the_packages() -> None:
    files = {folder.parent: folder for folder in K8S.rglob("model.yaml")}
    assert len(files) == 4
    shipped = {file.read_text() for file in MODEL_FILES.iterdir()}
    for file in files.values():
        assert file.read_text() in shipped, file


def test_the_demo_needs_nothing_but_a_cluster() -> None:
    objects = build("cpu-demo")
    own = {"v1", "apps/v1", "policy/v1", "networking.k8s.io/v1"}
    assert {item["apiVersion"] for item in objects} == own
    assert "Secret" not in yaml.safe_dump_all(objects)
    (group,) = (pod for pod in pods(objects) if not pod.is_frontend)
    assert (group.setting("ranks"), group.setting("device")) == ("2", "cpu")
    assert "google.com/tpu" not in group.main["resources"]["limits"]
