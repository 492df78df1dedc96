"""Strict schemas: Kubernetes' own of pinned versions, and ours for the kinds of operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.k8s.manifests import Object

KUBERNETES_VERSIONS = ("1.33", "1.37")
"""The oldest that the manifests are for, and the newest whose schemas are installed."""

_OURS = Path(__file__).parent / "schemas"


def validate(item: Object, version: str) -> None:
    """Validate an object, unknown fields included.

    Raises:
        jsonschema.ValidationError: if it breaks its schema.
    """
    ours = _OURS / f"{item['kind'].lower()}.yaml"
    if not ours.exists():
        kubernetes_validate.validate(item, version, strict=True)
        return
    jsonschema.validate(item, yaml.safe_load(ours.read_text()))
    _validate_parts(item, version)


def _validate_parts(item: Any, version: str) -> None:
    """Validate what is Kubernetes' own within the kind of an operator: metadata, pod templates and claims."""
    _validate_as(version, "v1", "ConfigMap", metadata=item["metadata"])
    if item["kind"] != "LeaderWorkerSet":
        return
    parts = item["spec"]["leaderWorkerTemplate"]
    for role in ("leaderTemplate", "workerTemplate"):
        if role in parts:
            _validate_as(version, "v1", "PodTemplate", template=parts[role])
    for claim in parts.get("volumeClaimTemplates", []):
        _validate_as(version, "v1", "PersistentVolumeClaim", **claim)


def _validate_as(version: str, api_version: str, kind: str, **fields: Any) -> None:
    kubernetes_validate.validate({"apiVersion": api_version, "kind": kind, **fields}, version, strict=True)
