"""Alerts, dashboard and scaling ask for metrics that there are, and every alert has its section in the docs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from service.metrics import FrontendMetrics
from tests.k8s.manifests import REPOSITORY, build, of_kind
from tests.workers.models import make_queue
from workers.metrics import GroupMetrics
from workers.model_file import FamilyName, load_model_file
from workers.status import StatusBoard
from workers.tiny_checkpoints import write_tiny_checkpoint

PAGE = REPOSITORY / "docs" / "kubernetes.md"
SAMPLES = r"(_total|_bucket|_sum|_count)$"


def _rules() -> list[Any]:
    (rule,) = of_kind(build("fleet"), "PrometheusRule")
    return [alert for group in rule["spec"]["groups"] for alert in group["rules"]]


def _dashboard() -> Any:
    (dashboard,) = (item for item in of_kind(build("fleet"), "ConfigMap") if "pixelpod.json" in item["data"])
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    return json.loads(dashboard["data"]["pixelpod.json"])


def _expressions() -> list[str]:
    return [rule["expr"] for rule in _rules()] + [
        target["expr"] for panel in _dashboard()["panels"] for target in panel["targets"]
    ]


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the names of all metrics that the processes have, without the endings of their samples."""
    folder: Path = tmp_path_factory.mktemp("model")
    model, queue = load_model_file(write_tiny_checkpoint(FamilyName.SD3, folder)), make_queue()
    group = GroupMetrics(model, queue, StatusBoard("group", model, 1, 1, queue))
    registries = (FrontendMetrics().registry, group.registry)
    return {metric.name for registry in registries for metric in registry.collect()}


@pytest.mark.parametrize("expression", _expressions())
def test_expressions_are_promql_about_our_metrics(expression: str, metrics: set[str]) -> None:
    promql_parser.parse(expression)
    asked = set(re.findall(r"\bpixelpod_\w+", expression))
    assert not {re.sub(SAMPLES, "", name) for name in asked} - metrics
    assert asked or "kube_pod_container_status_restarts_total" in expression


@pytest.mark.parametrize("rule", _rules(), ids=lambda rule: rule["alert"])
def test_every_alert_is_explained(rule: Any) -> None:
    assert re.search(rf"^### {rule['alert']}$", PAGE.read_text(), re.MULTILINE)
    assert set(rule["annotations"]) == {"summary"}
    assert rule["labels"]["severity"] in {"warning", "critical"}


def test_no_alert_is_explained_that_is_none() -> None:
    explained = re.findall(r"^### (Pixelpod\w+)$", PAGE.read_text(), re.MULTILINE)
    assert explained == [rule["alert"] for rule in _rules()]


def test_scaling_asks_for_our_metrics(metrics: set[str]) -> None:
    scalers = of_kind(build("fleet"), "HorizontalPodAutoscaler")
    assert len(scalers) == 2
    for scaler in scalers:
        for metric in scaler["spec"]["metrics"]:
            (asked,) = (value["metric"] for value in metric.values() if isinstance(value, dict))
            assert asked["name"] in metrics
            assert f'"{asked["name"]}"' in PAGE.read_text() or f"`{asked['name']}`" in PAGE.read_text()
