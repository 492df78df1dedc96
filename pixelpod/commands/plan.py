"""`pixelpod plan`: tells which placement of a model fits a chip's memory."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pixelpod.commands.extras import importing
from pixelpod.commands.failure import CommandFailed
from pixelpod.commands.parameters import Json
from pixelpod.exit_codes import ExitCode

if TYPE_CHECKING:
    from rich.table import Table

    from workers.plan import Plan

ChipName = Literal["v6e", "v7x"]
"""The names in workers.plan.Chip, which is not imported before a plan is made."""


def plan(
    model_file: Annotated[Path, typer.Argument(help="The model file.")],
    chip: Annotated[ChipName, typer.Option(help="The accelerator.")],
    ranks: Annotated[int, typer.Option(min=1, help="Devices that tensor_parallel splits the model over.")] = 1,
    as_json: Json = False,
) -> None:
    """Tell which placement of a model fits a chip's memory, before any weight is loaded.

    Reads the configs of the checkpoint only. Refuses when the placement that the model file asks for does not fit.
    """
    with importing("worker"):
        from workers.devices import device_named
        from workers.errors import ModelRefused

        # Set before torch loads: shapes need no accelerator, and a group may be using it.
        os.environ.update(device_named("cpu").prepare_environment(ranks=1))
        from workers.model_file import load_model_file
        from workers.plan import Chip, make_plan

    try:
        made = make_plan(load_model_file(model_file), Chip(chip), ranks)
    except ModelRefused as error:
        raise CommandFailed(str(error), ExitCode.REFUSED) from error
    refusal, as_dict = made.refusal(), dataclasses.asdict(made)
    if not as_json:
        _print_tables(made)
    elif not refusal:
        typer.echo(json.dumps(as_dict))
    if refusal:
        raise CommandFailed(refusal, ExitCode.REFUSED, details={"plan": as_dict})


def _print_tables(made: Plan) -> None:
    from rich.console import Console

    from pixelpod.commands.report import PIPED_WIDTH

    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
    console.print(_weights_table(made))
    console.print(_placements_table(made))


def _weights_table(made: Plan) -> Table:
    from rich.table import Table

    from workers.model_file import Placement

    parallel = made.fit(Placement.TENSOR_PARALLEL)
    table = Table(title=f"{made.model}: weights", title_justify="left")
    table.add_column("component")
    for heading in ("parameters", "in all", f"on each of {parallel.ranks} ranks"):
        table.add_column(heading, justify="right")
    for component in made.components:
        table.add_row(
            component.name,
            f"{component.parameters / 1e9:.2f} B",
            _gigabytes(component.total_bytes),
            _gigabytes(None if parallel.weight_bytes is None else component.rank_bytes(parallel.ranks)),
        )
    table.add_section()
    table.add_row(
        "all",
        f"{sum(component.parameters for component in made.components) / 1e9:.2f} B",
        _gigabytes(sum(component.total_bytes for component in made.components)),
        _gigabytes(parallel.weight_bytes),
    )
    return table


def _placements_table(made: Plan) -> Table:
    from rich.table import Table

    usable, memory = _gigabytes(made.usable_bytes), _gigabytes(made.device_bytes)
    table = Table(title=f"{made.chip}: {usable} of {memory} usable on each device", title_justify="left")
    table.add_column("placement")
    table.add_column("ranks", justify="right")
    table.add_column("fullest device", justify="right")
    table.add_column("fits")
    table.add_column("why not")
    for fit in made.fits:
        table.add_row(
            f"{fit.placement} (asked for)" if fit.placement == made.asked else fit.placement,
            str(fit.ranks),
            _gigabytes(fit.weight_bytes),
            "yes" if fit.fits else "no",
            fit.remark,
        )
    return table


def _gigabytes(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1e9:.1f} GB"
