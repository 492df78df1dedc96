"""The pages for operators name what the processes really say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from pixelpod.client.channel import SERVICE_CONFIG
from service.metrics import FrontendMetrics
from tests.workers.models import make_queue
from workers.metrics import GroupMetrics
from workers.model_file import FamilyName, load_model_file
from workers.status import StatusBoard
from workers.tiny_checkpoints import write_tiny_checkpoint

REPOSITORY = Path(__file__).parent.parent


def test_every_metric_is_documented(tmp_path: Path) -> None:
    model, queue = load_model_file(write_tiny_checkpoint(FamilyName.SD3, tmp_path)), make_queue()
    group = GroupMetrics(model, queue, StatusBoard("group", model, 1, 1, queue))
    page = (REPOSITORY / "docs" / "metrics.md").read_text()
    names = _names(FrontendMetrics().registry) | _names(group.registry)
    assert not {name for name in names if f"`{name}" not in page}


@pytest.mark.parametrize("package", ["pixelpod/server", "service", "workers"])
def test_every_reason_is_documented(package: str) -> None:
    page = (REPOSITORY / "docs" / "errors.md").read_text()
    source = "".join(file.read_text() for file in (REPOSITORY / package).rglob("*.py"))
    reasons = set(re.findall(r"reason(?:: str)? ?= ?\"([A-Z_]+)\"", source))
    assert reasons
    assert not {reason for reason in reasons if reason not in page}


def test_the_service_config_is_the_client_librarys() -> None:
    page = (REPOSITORY / "docs" / "errors.md").read_text()
    (published,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert json.loads(published) == SERVICE_CONFIG


def _names(registry: CollectorRegistry) -> set[str]:
    return {metric.name for metric in registry.collect()}
