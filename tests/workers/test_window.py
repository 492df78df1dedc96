"""A batch waits for mates only where they are expected."""

from __future__ import annotations

import asyncio

import pytest

from tests.workers.models import accept, make_request
from workers.window import BatchWindow


async def test_a_lone_caller_never_waits() -> None:
    window, request = BatchWindow(10.0), accept()
    assert window.pays_until([request]) <= request.arrived
    window.batch_ended(request.key, requests=1)
    again = accept()
    assert window.pays_until([again]) <= again.arrived


async def test_callers_that_come_again_are_waited_for_from_the_arrival_of_the_first() -> None:
    window, request = BatchWindow(10.0), accept()
    window.batch_ended(request.key, requests=3)
    first, second, third = accept(), accept(), accept()
    assert window.pays_until([first, second]) == first.arrived + 10.0
    assert window.pays_until([first, second, third]) <= first.arrived, "all are there"


async def test_another_key_is_not_waited_for() -> None:
    window, request = BatchWindow(10.0), accept(make_request(steps=3))
    window.batch_ended(request.key, requests=3)
    other = accept()
    assert window.pays_until([other]) <= other.arrived


async def test_after_a_pause_nobody_is_expected() -> None:
    window, request = BatchWindow(0.01), accept()
    window.batch_ended(request.key, requests=3)
    await asyncio.sleep(0.02)
    late = accept()
    assert window.pays_until([late]) <= late.arrived


async def test_no_deadline_is_missed_for_mates() -> None:
    window, request = BatchWindow(10.0), accept()
    window.batch_ended(request.key, requests=3)
    patient, hurried = accept(), accept(seconds=5.0, predicted_seconds=2.0)
    assert window.pays_until([patient, hurried]) == pytest.approx(hurried.deadline - 2.0)
