"""What the manifests name is there: ports, probes, Secrets, ConfigMaps, claims, images, options and settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from pixelpod.server.probes import LIVE
from service.servicer import SERVICE_NAME
from service.settings import FrontendSettings
from tests.k8s.manifests import ALL_PODS, OVERLAYS, REPOSITORY, Pod, build, names, of_kind, pods
from workers.endpoint import SERVICE
from workers.settings import GroupSettings

PODS = pytest.mark.parametrize(
    ("objects", "pod"), [(objects, pod) for _, objects, pod in ALL_PODS], ids=[name for name, _, _ in ALL_PODS]
)
WIDE = {**os.environ, "COLUMNS": "200", "TERM": "dumb"}


@cache
def options(command: str) -> set[str]:
    """Return the options that a command's help lists."""
    argv = [sys.executable, "-m", "pixelpod", command, "--help"]
    text = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, env=WIDE).stdout
    return set(re.findall(r"(--[a-z][a-z-]*)", text))


@PODS
def test_options_are_known(objects: Any, pod: Pod) -> None:
    command, *given = pod.main["args"]
    assert command == ("serve" if pod.is_frontend else "group")
    unknown = {option.partition("=")[0] for option in given} - options(command)
    assert not unknown


@PODS
def test_variables_are_settings(objects: Any, pod: Pod) -> None:
    fields = (FrontendSettings if pod.is_frontend else GroupSettings).model_fields
    prefix = "PIXELPOD_FRONTEND_" if pod.is_frontend else "PIXELPOD_GROUP_"
    given = {item["name"] for item in pod.main["env"] if item["name"].startswith("PIXELPOD_")}
    assert given
    assert not {name for name in given if not name.startswith(prefix)}
    assert not {name.removeprefix(prefix).lower() for name in given} - set(fields)


@PODS
def test_variables_refer_to_earlier_ones(objects: Any, pod: Pod) -> None:
    known = {"LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"} if "Template" in pod.role else set()
    for container in pod.containers:
        seen = set(known)
        for item in container["env"]:
            assert set(re.findall(r"\$\((\w+)\)", item.get("value", ""))) <= seen, item
            seen.add(item["name"])
        words = " ".join([*container.get("args", []), *container.get("command", [])])
        assert set(re.findall(r"\$\((\w+)\)", words)) <= seen


@PODS
def test_ports_are_those_listened_on(objects: Any, pod: Pod) -> None:
    declared = {port["name"]: port["containerPort"] for port in pod.main.get("ports", [])}
    if not pod.serves:
        assert declared == {}
        assert not {"listen", "metrics", "probes"} & {arg.partition("=")[0][2:] for arg in pod.main["args"]}
        return
    listened = {
        "grpc": pod.flag("listen"),
        "probes": pod.flag("probes"),
        "metrics": pod.flag("metrics"),
    } | ({"rendezvous": pod.flag("rendezvous")} if pod.role == "leaderTemplate" else {})
    assert declared == {name: int(address.rpartition(":")[2]) for name, address in listened.items()}
    assert all(listened[name].startswith("0.0.0.0:") for name in ("grpc", "probes", "metrics"))


@PODS
def test_probes_ask_for_services_that_answer(objects: Any, pod: Pod) -> None:
    if not pod.serves:
        assert not [key for key in pod.main if key.endswith("Probe")]
        return
    ready = SERVICE_NAME if pod.is_frontend else SERVICE
    asked = {key: pod.main[key]["grpc"] for key in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {probe["port"] for probe in asked.values()} == {int(pod.flag("probes").rpartition(":")[2])}
    assert asked["readinessProbe"]["service"] == ready
    assert asked["livenessProbe"]["service"] == LIVE
    assert asked["startupProbe"]["service"] == (LIVE if pod.is_frontend else ready)


@PODS
def test_volumes_are_there_and_mounted(objects: Any, pod: Pod) -> None:
    volumes = {volume["name"] for volume in pod.spec["volumes"]} | pod.claims
    mounts = [mount for container in pod.containers for mount in container["volumeMounts"]]
    assert {mount["name"] for mount in mounts} == volumes
    for container in pod.containers:
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(paths) == len(set(paths))


@PODS
def test_files_are_in_volumes(objects: Any, pod: Pod) -> None:
    """Every path that a variable names is in a Secret, a ConfigMap, the image or a volume."""
    given = {item["name"]: item["value"] for item in pod.main["env"] if item.get("value", "").startswith("/")}
    by_path = {mount["mountPath"]: mount["name"] for mount in pod.main["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    for path in given.values():
        folder, _, key = path.rpartition("/")
        if path.startswith("/opt/pixelpod/"):
            packaged = path.partition("/site-packages/")[2]
            assert (REPOSITORY / packaged).is_file(), path
        elif path.startswith("/var/cache/pixelpod/"):
            assert by_path["/var/cache/pixelpod"] in pod.claims
        elif "configMap" in (volume := volumes[by_path[folder]]):
            assert key in _config_map(objects, volume["configMap"]["name"])["data"]
        else:
            assert key in secrets()[volume["secret"]["secretName"]]


def _config_map(objects: Any, name: str) -> Any:
    return next(item for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == name)


@cache
def secrets() -> dict[str, set[str]]:
    """Return the Secrets that docs/kubernetes.md tells to make, with their keys."""
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    rows = re.findall(r"^\| Secret `([a-z-]+)` \| ([^|]+) \|", page, re.MULTILINE)
    return {name: set(re.findall(r"`([\w.]+)`", keys)) for name, keys in rows}


@PODS
def test_secrets_and_claims_are_documented(objects: Any, pod: Pod) -> None:
    for volume in pod.spec["volumes"]:
        if "secret" in volume:
            assert volume["secret"]["secretName"] in secrets()
        if "configMap" in volume:
            assert volume["configMap"]["name"] in names(objects, "ConfigMap")
        if "persistentVolumeClaim" in volume:
            page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
            assert f"| claim `{volume['persistentVolumeClaim']['claimName']}` |" in page
    for container in pod.containers:
        for item in container["env"]:
            if reference := item.get("valueFrom", {}).get("secretKeyRef"):
                assert reference["key"] in secrets()[reference["name"]]


@PODS
def test_images_are_targets_of_the_dockerfile(objects: Any, pod: Pod) -> None:
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE))
    version = re.search(r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    role = "frontend" if pod.is_frontend else "group"
    assert role in targets
    assert {container["image"] for container in pod.containers} == {f"pixelpod-{role}:{version[1]}"}


@PODS
def test_accounts_are_there(objects: Any, pod: Pod) -> None:
    assert pod.spec["serviceAccountName"] in names(objects, "ServiceAccount")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_select_ports_that_pods_have(overlay: str) -> None:
    objects = build(overlay)
    for service in of_kind(objects, "Service"):
        selected = [pod for pod in pods(objects) if service["spec"]["selector"].items() <= pod.labels.items()]
        assert selected, service["metadata"]["name"]
        for pod in selected:
            declared = {port["name"]: port["containerPort"] for port in pod.main["ports"]}
            for port in service["spec"]["ports"]:
                assert declared[port["targetPort"]] == port["port"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_frontends_look_up_every_group_that_is_ready(overlay: str) -> None:
    objects = build(overlay)
    (frontend,) = (pod for pod in pods(objects) if pod.is_frontend)
    name, _, port = frontend.flag("groups-dns").partition(":")
    (service,) = (item for item in of_kind(objects, "Service") if item["metadata"]["name"] == name)
    assert service["spec"]["clusterIP"] == "None"
    assert "publishNotReadyAddresses" not in service["spec"]
    assert service["spec"]["ports"][0]["port"] == int(port)
    groups = [pod for pod in pods(objects) if not pod.is_frontend]
    selected = [pod for pod in groups if service["spec"]["selector"].items() <= pod.labels.items()]
    assert selected == [pod for pod in groups if pod.serves]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_what_they_are_for(overlay: str) -> None:
    objects = build(overlay)
    labels = [pod.labels for pod in pods(objects)]
    for budget in of_kind(objects, "PodDisruptionBudget"):
        wanted = budget["spec"]["selector"]["matchLabels"].items()
        assert len([found for found in labels if wanted <= found.items()]) == 1, budget["metadata"]["name"]
    for owner in of_kind(objects, "Deployment", "StatefulSet"):
        wanted = owner["spec"]["selector"]["matchLabels"].items()
        assert len([found for found in labels if wanted <= found.items()]) == 1, owner["metadata"]["name"]
    for policy in of_kind(objects, "NetworkPolicy"):
        wanted = policy["spec"]["podSelector"].get("matchLabels", {}).items()
        assert any(wanted <= found.items() for found in labels), policy["metadata"]["name"]
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        (scaled,) = (item for item in of_kind(objects, target["kind"]) if item["metadata"]["name"] == target["name"])
        assert scaled["apiVersion"] == target["apiVersion"]
        assert "replicas" not in scaled["spec"]  # an update would set them back
    for owner in of_kind(objects, "StatefulSet"):
        assert owner["spec"]["serviceName"] in names(objects, "Service")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everything_is_scraped(overlay: str) -> None:
    objects = build(overlay)
    for monitor in of_kind(objects, "PodMonitor"):
        (expression,) = monitor["spec"]["selector"]["matchExpressions"]
        for pod in pods(objects):
            assert pod.labels[expression["key"]] in expression["values"]
            if pod.serves:
                ports = {port["name"] for port in pod.main["ports"]}
                assert {end["port"] for end in monitor["spec"]["podMetricsEndpoints"]} <= ports


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_policies_let_pass_what_must(overlay: str) -> None:
    """Callers to frontends, frontends to groups, hosts of a slice to each other, by the ports that are there."""
    objects = build(overlay)
    policies = {item["metadata"]["name"]: item["spec"] for item in of_kind(objects, "NetworkPolicy")}
    assert policies["nothing-else"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    to_groups = policies["frontend"]["egress"][0]
    reached = to_groups["to"][0]["podSelector"]["matchLabels"]
    for pod in pods(objects):
        ports = {port["name"]: port["containerPort"] for port in pod.main.get("ports", [])}
        if not pod.is_frontend and pod.serves:
            assert reached.items() <= pod.labels.items()
            assert [port["port"] for port in to_groups["ports"]] == [ports["grpc"]]
        if pod.role == "workerTemplate":
            slices = [spec for spec in policies.values() if spec["podSelector"].get("matchLabels")]
            selector = {"app.kubernetes.io/instance": pod.labels["app.kubernetes.io/instance"]}
            (own,) = (spec for spec in slices if spec["podSelector"]["matchLabels"] == selector)
            assert own["ingress"] == [{"from": [{"podSelector": {"matchLabels": selector}}]}]
            assert own["egress"] == [{"to": [{"podSelector": {"matchLabels": selector}}]}]
