"""The manifests as kustomize builds them, and what tests look up in them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parent.parent.parent
K8S = REPOSITORY / "k8s"
KUBECTL = Path(sys.executable).parent / "kubectl"
OVERLAYS = sorted(folder.name for folder in (K8S / "overlays").iterdir())
NAMESPACE = "pixelpod"

Object = Mapping[str, Any]
"""A Kubernetes object."""


@cache
def build(overlay: str) -> list[Object]:
    """Return the objects of an overlay."""
    argv = [str(KUBECTL), "kustomize", str(K8S / "overlays" / overlay)]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return list(yaml.safe_load_all(result.stdout))


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [item for item in objects if item["kind"] in kinds]


def names(objects: list[Object], *kinds: str) -> set[str]:
    return {item["metadata"]["name"] for item in of_kind(objects, *kinds)}


@dataclass(frozen=True)
class Pod:
    """A pod template, and what it is part of."""

    owner: Object
    role: str
    """Deployment, StatefulSet, leaderTemplate or workerTemplate."""
    template: Object
    claims: frozenset[str]
    """Names of the volumes that the owner's volumeClaimTemplates make."""

    def __str__(self) -> str:
        return f"{self.owner['metadata']['name']}/{self.role}"

    @property
    def spec(self) -> Any:
        return self.template["spec"]

    @property
    def labels(self) -> Any:
        return self.template["metadata"]["labels"]

    @property
    def is_frontend(self) -> bool:
        return bool(self.labels["app.kubernetes.io/component"] == "frontend")

    @property
    def serves(self) -> bool:
        """Whether somebody calls it: all do but the workers of a slice."""
        return self.role != "workerTemplate"

    @property
    def main(self) -> Any:
        (container,) = self.spec["containers"]
        return container

    @property
    def containers(self) -> list[Any]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    def setting(self, name: str) -> str:
        """Return what the main container's environment sets for a setting, by the setting's own name."""
        prefix = "PIXELPOD_FRONTEND_" if self.is_frontend else "PIXELPOD_GROUP_"
        return str(next(item["value"] for item in self.main["env"] if item["name"] == f"{prefix}{name.upper()}"))

    def flag(self, name: str) -> str:
        """Return the value of an option in the main container's arguments."""
        return next(a.partition("=")[2] for a in self.main["args"] if a.partition("=")[0] == f"--{name}")


def pods(objects: list[Object]) -> Iterator[Pod]:
    """Yield every pod template."""
    for owner in objects:
        spec = owner.get("spec", {})
        if owner["kind"] == "LeaderWorkerSet":
            spec = spec["leaderWorkerTemplate"]
            roles = ["leaderTemplate", "workerTemplate"]
        elif "template" in spec:
            roles = ["template"]
        else:
            continue
        claims = frozenset(claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", []))
        for role in roles:
            yield Pod(owner, owner["kind"] if role == "template" else role, spec[role], claims)


ALL_PODS = [(f"{overlay}:{pod}", build(overlay), pod) for overlay in OVERLAYS for pod in pods(build(overlay))]
"""Every pod template of every overlay, with a name and all objects of its overlay."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with $(NAME) replaced as the kubelet does: what is not known stays."""
    return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), text)


def environment(container: Any, given: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, str]:
    """Return a container's environment as the kubelet makes it.

    Args:
        container: Its env is read in order; a variable may only use those before it.
        given: Variables that are there before, such as LeaderWorkerSet's.
        fields: What fieldRefs refer to.
    """
    variables = dict(given)
    for item in container["env"]:
        if "value" in item:
            variables[item["name"]] = expand(item["value"], variables)
        elif "fieldRef" in item["valueFrom"]:
            variables[item["name"]] = fields[item["valueFrom"]["fieldRef"]["fieldPath"]]
    return variables
