"""When a request is expected to be done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelpod.v1 import group_pb2, images_pb2
from service.admission import Ticket
from service.forecast import forecast, least_seconds, level
from service.load import GroupLoad
from tests.service.stub_group import measured, tiny_model

SECONDS = st.floats(0, 1000)


def group(backlog_seconds: float = 0.0, speed: float = 1.0) -> GroupLoad:
    """A group whose batches of one image take 1 s and those of four 2 s, at the default steps."""
    load = GroupLoad(clock=lambda: 0.0)
    times = [*measured(0.0, 0.25 / speed, 1), *measured(0.0, 0.5 / speed, 4)]
    load.take(group_pb2.GroupStatus(model=tiny_model(), backlog_seconds=backlog_seconds, batch_seconds=times))
    return load


def ticket(num_images: int = 1) -> Ticket:
    parameters = images_pb2.ResolvedParameters(width=64, height=64, num_images=num_images, steps=4)
    return Ticket(parameters, deadline=1e9, model="tiny")


def test_an_idle_group_computes_it_by_itself() -> None:
    assert forecast(ticket(), [], [group(), group(5.0)]).finish_seconds == 1.0


def test_behind_others_it_has_mates() -> None:
    expected = forecast(ticket(), [], [group(5.0), group(3.0)])
    assert (expected.start_seconds, expected.own_seconds, expected.finish_seconds) == (3.0, 2.0, 5.0)


def test_what_waits_before_it_costs_its_share_of_full_batches() -> None:
    assert forecast(ticket(), [ticket(4), ticket()], [group(), group()]).start_seconds == pytest.approx(1.25)


def test_the_least_is_by_the_fastest_group() -> None:
    assert least_seconds(ticket(), [group(), group(speed=2.0)]) == pytest.approx(0.35)
    assert least_seconds(ticket(), []) == 0


def test_work_fills_the_least_busy_groups_first() -> None:
    assert level([1.0, 5.0], 2.0) == 3.0
    assert level([5.0, 1.0], 6.0) == 6.0
    assert level([0.0, 0.0, 100.0], 4.0) == 2.0


@given(st.lists(SECONDS, min_size=1, max_size=20), SECONDS)
def test_the_level_holds_exactly_the_work(backlogs: list[float], work: float) -> None:
    reached = level(backlogs, work)
    assert reached >= min(backlogs)
    assert sum(max(0.0, reached - backlog) for backlog in backlogs) == pytest.approx(work, rel=1e-6, abs=1e-6)
