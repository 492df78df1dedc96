"""Timed groups and a frontend before them, ended with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.frontends import RunningFrontend, frontend
from tests.e2e.timed_groups import Nursery, TimedGroups, nursery


@pytest.fixture(scope="package")
def groups_nursery() -> Iterator[Nursery]:
    """One for all tests: its imports take seconds."""
    with nursery() as groups_nursery:
        yield groups_nursery


@pytest.fixture
def start_timed_groups(groups_nursery: Nursery, tmp_path: Path) -> Iterator[Callable[[int, float], TimedGroups]]:
    """Start so many groups, whose steps take so many seconds."""
    started = []

    def start(number: int, step_seconds: float) -> TimedGroups:
        groups = TimedGroups(groups_nursery, number, step_seconds, tmp_path)
        started.append(groups)
        for group in groups.all:
            group.start()
        return groups

    yield start
    for groups in started:
        groups.kill_all()


@pytest.fixture
def service(groups: TimedGroups) -> Iterator[RunningFrontend]:
    """A frontend before the groups of the test's module, its fixture `groups`; at the end it must stop as told."""
    with frontend(groups.addresses, "--drain-delay-seconds", "0") as service:
        yield service
        assert service.process.stop() == 0
