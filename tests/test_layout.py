"""Which package may import what, and what works without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent

FORBIDDEN = {
    "pixelpod": {"torch", "diffusers", "transformers", "service", "workers"},
    "service": {"torch", "diffusers", "transformers", "workers"},
    "workers": {"service"},
}
"""Package to the top-level modules that it must not import when it is imported itself."""


@pytest.mark.parametrize(("package", "forbidden"), FORBIDDEN.items(), ids=FORBIDDEN.keys())
def test_arrows_point_one_way(package: str, forbidden: set[str]) -> None:
    found = [
        f"{file.relative_to(REPOSITORY)} imports {name}"
        for file in sorted((REPOSITORY / package).rglob("*.py"))
        for name in _imports(file, package)
        if name.split(".")[0] in forbidden
    ]
    assert not found


@pytest.mark.parametrize("module", ["pixelpod.client", "pixelpod.cli", "service", "service.frontend"])
def test_import_without_torch(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import {module}; print('imported')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "imported", result.stderr


def test_client_imports_only_the_base_install() -> None:
    extras = ["torch", "PIL", "pydantic", "pydantic_settings", "prometheus_client", "pythonjsonlogger", "grpc_health"]
    block = "; ".join(f"sys.modules[{name!r}] = None" for name in extras)
    code = f"import sys; {block}; import pixelpod.client, pixelpod.cli; print('imported')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "imported", result.stderr


SETTINGS = "settings.py"
"""Beside the devices themselves, the setting that names them (law 10). plan.py names chips, which are no devices."""


def test_devices_differ_in_one_place_only() -> None:
    found = [
        f"{file.name}:{node.lineno}"
        for file in sorted((REPOSITORY / "workers").rglob("*.py"))
        if file.parent.name != "devices" and file.name != SETTINGS
        for node in ast.walk(ast.parse(file.read_text()))
        if _names_an_accelerator(node)
    ]
    assert not found


def _names_an_accelerator(node: ast.AST) -> bool:
    names = {"tpu", "cuda"}
    if isinstance(node, ast.Constant):
        return node.value in names
    return isinstance(node, ast.Attribute) and node.attr in names


def _imports(file: Path, package: str) -> list[str]:
    """Return what `file` imports; for the command line, whose commands import lazily, only at module level."""
    tree = ast.parse(file.read_text())
    nodes = ast.iter_child_nodes(tree) if package == "pixelpod" else ast.walk(tree)
    names = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return names
