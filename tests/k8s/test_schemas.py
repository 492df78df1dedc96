"""Every overlay builds, and every object obeys its schema to the letter."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest

from tests.k8s.manifests import K8S, NAMESPACE, OVERLAYS, build, of_kind
from tests.k8s.schemas import KUBERNETES_VERSIONS, validate


def test_the_overlays_are_there() -> None:
    assert OVERLAYS == ["cpu-demo", "fleet", "v6e-1", "v6e-16-multihost", "v6e-8", "v7x-8"]


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_objects_obey_their_schemas(overlay: str, version: str) -> None:
    for item in build(overlay):
        validate(item, version)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_objects_are_unique_and_in_the_namespace(overlay: str) -> None:
    objects = build(overlay)
    keys = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(keys) == len(set(keys))
    assert {item["metadata"].get("namespace") for item in objects if item["kind"] != "Namespace"} == {NAMESPACE}


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "LeaderWorkerSet", "PodMonitor", "PrometheusRule"])
def test_a_field_at_the_wrong_level_is_found(kind: str) -> None:
    item: Any = copy.deepcopy(of_kind(build("fleet"), kind)[0])
    validate(item, KUBERNETES_VERSIONS[-1])
    item["spec"]["terminationGracePeriodSeconds"] = 1
    with pytest.raises(jsonschema.ValidationError):
        validate(item, KUBERNETES_VERSIONS[-1])


def test_a_wrong_field_in_a_slice_is_found() -> None:
    item: Any = copy.deepcopy(of_kind(build("v6e-16-multihost"), "LeaderWorkerSet")[0])
    item["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["ressources"] = {}
    with pytest.raises(jsonschema.ValidationError, match="ressources"):
        validate(item, KUBERNETES_VERSIONS[-1])


def test_no_file_is_left_out() -> None:
    """Every file is named by the kustomization beside it."""
    for file in K8S.rglob("*"):
        if file.is_file() and file.name not in {"kustomization.yaml", "README.md"}:
            assert file.name in (file.parent / "kustomization.yaml").read_text(), file
