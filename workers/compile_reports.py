"""How rank 0 learns what was compiled on every rank: all ranks report after each batch and at the end of warm-up."""

from __future__ import annotations

from collections.abc import Mapping

from workers.compiles import COMPONENTS, Compiles
from workers.control import ControlChannel

Report = dict[str, Compiles]
"""What one rank compiled, by component."""

_MILLISECONDS = 1000


def gather_reports(channel: ControlChannel, compiles: Mapping[str, Compiles]) -> list[Report]:
    """Report `compiles`, by component, to rank 0. Returns there the reports of all ranks in order, else none.

    Raises:
        WorldBroken: if a rank is gone.
    """
    numbers = []
    for component in COMPONENTS:
        own = compiles.get(component, Compiles())
        numbers += [own.compiled, own.cached, round(own.seconds * _MILLISECONDS)]
    return [_read(row) for row in channel.gather_rows(numbers)]


def total(report: Report) -> Compiles:
    """Return what one rank compiled in all."""
    compiles = Compiles()
    for each in report.values():
        compiles.add(each)
    return compiles


def _read(row: list[int]) -> Report:
    columns = zip(COMPONENTS, row[0::3], row[1::3], row[2::3], strict=True)
    return {
        component: Compiles(compiled, cached, milliseconds / _MILLISECONDS)
        for component, compiled, cached, milliseconds in columns
    }
