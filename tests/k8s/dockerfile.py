"""The Dockerfile without an engine: its stages as lists of instructions, and the file tree that its lines make."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.k8s.manifests import REPOSITORY

DOCKERFILE = REPOSITORY / "Dockerfile"
INSTALLED = "/opt/pixelpod"
"""Where the images have the packages."""


@dataclass
class Stage:
    """One stage: what it builds on, and its instructions in order, as (word, rest of the line)."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)


def stages() -> dict[str, Stage]:
    """Return the stages by name."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    found: dict[str, Stage] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = found[name] = Stage(name, base)
        else:
            stage.instructions.append((word, " ".join(rest.split())))
    return found


def lineage(target: str) -> list[Stage]:
    """Return a stage and those that it builds on, the first one first."""
    known, chain = stages(), [stages()[target]]
    while chain[0].base in known:
        chain.insert(0, known[chain[0].base])
    return chain


@dataclass(frozen=True)
class Image:
    """What a container of an image is started with."""

    environment: dict[str, str]
    user: str
    entrypoint: list[str]
    command: list[str]
    ports: set[int]


def image(target: str) -> Image:
    """Return how the image of this target starts."""
    instructions = [instruction for stage in lineage(target) for instruction in stage.instructions]
    last = dict(instructions)
    environment: dict[str, str] = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    for word, rest in instructions:
        if word == "ENV":
            for assignment in shlex.split(rest):
                name, _, value = assignment.partition("=")
                environment[name] = value.replace("$PATH", environment["PATH"])
    return Image(
        environment=environment,
        user=last["USER"],
        entrypoint=json.loads(last["ENTRYPOINT"]),
        command=json.loads(last["CMD"]),
        ports={int(port) for port in last["EXPOSE"].split()},
    )


def build_tree(target: str, folder: Path) -> Path:
    """Do what the build stage of a target does, with `folder` as the image's root; return where the packages are.

    Args:
        target: frontend or group.
        folder: An empty one.
    """
    (copied,) = (rest for word, rest in stages()[target].instructions if word == "COPY")
    source, origin, destination = copied.split()
    assert (origin, destination) == (INSTALLED, INSTALLED)
    workplace = folder / "src"
    workplace.mkdir()
    for stage in lineage(source.removeprefix("--from=")):
        for word, rest in stage.instructions:
            if word == "COPY":
                _copy(rest.split(), workplace)
            elif word == "RUN":
                _run(rest.replace(INSTALLED, str(folder / INSTALLED[1:])), workplace)
            else:
                assert word in {"WORKDIR", "ARG"}, word  # the index with builds for CPUs is the machine's own here
    return folder / INSTALLED[1:]


def _copy(words: list[str], workplace: Path) -> None:
    *sources, destination = words
    for source in sources:
        if (REPOSITORY / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / source, workplace / destination, ignore=ignored)
        else:
            shutil.copy(REPOSITORY / source, workplace / destination)


def _run(line: str, workplace: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": ""}
    result = subprocess.run(
        line, shell=True, cwd=workplace, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
