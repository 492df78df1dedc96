"""What `pixelpod generate` and `pixelpod models` print, for people and for scripts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table

from pixelpod.client import Generation, IntegerLimits, Model

PIPED_WIDTH = 160
"""Columns of a table that no terminal bounds."""


def print_generation(generation: Generation, files: Sequence[str], *, to_stderr: bool) -> None:
    """Print where the images are, their seeds, what was not followed to the letter, and where the time went."""
    for warning in generation.warnings:
        typer.secho(f"warning: {warning.field}: {warning.message}", fg="yellow", err=True)
    for image, file in zip(generation.images, files, strict=True):
        typer.echo(f"{file}  {image.width}x{image.height}  seed {image.seed}", err=to_stderr)
    model = " ".join(filter(None, [generation.model, generation.revision]))
    typer.echo(f"{model}, group {generation.group}, request {generation.request_id}", err=to_stderr)
    _console(to_stderr).print(_timings_table(generation))


def print_generation_json(generation: Generation, files: Sequence[str]) -> None:
    """Print one JSON object: the result without the images' bytes, with their files' paths."""
    images = [
        {"path": file, "size_bytes": len(image.data), **_plain(image, leave_out="data")}
        for image, file in zip(generation.images, files, strict=True)
    ]
    result = _plain(generation, leave_out="message") | {
        "images": images,
        "parameters": dataclasses.asdict(generation.parameters),
        "warnings": [dataclasses.asdict(warning) for warning in generation.warnings],
        "timings": dataclasses.asdict(generation.timings),
    }
    typer.echo(json.dumps(result))


def print_models(models: Sequence[Model]) -> None:
    """Print a table of the models, with limits and defaults."""
    table = Table()
    for heading in (
        "model",
        "revision",
        "family",
        "groups",
        "sizes",
        "images",
        "steps",
        "guidance",
        "tokens",
        "default",
    ):
        table.add_column(heading)
    for model in models:
        limits, defaults = model.limits, model.defaults
        guidance = f"{limits.guidance_scale.minimum:g} to {limits.guidance_scale.maximum:g}"
        table.add_row(
            model.name,
            model.revision,
            model.family,
            str(model.ready_groups),
            "\n".join(f"{size.width}x{size.height}{'' if size.warm else ' (cold)'}" for size in model.buckets),
            _range(limits.num_images),
            _range(limits.steps),
            guidance if limits.guidance_used else "unused",
            _range(limits.max_sequence_length),
            f"{defaults.width}x{defaults.height}, {defaults.steps} steps, guidance {defaults.guidance_scale:g}",
        )
    _console(to_stderr=False).print(table)


def print_models_json(models: Sequence[Model]) -> None:
    """Print one JSON object with every model."""
    typer.echo(json.dumps({"models": [dataclasses.asdict(model) for model in models]}))


def _timings_table(generation: Generation) -> Table:
    table = Table("stage", "seconds")
    table.columns[1].justify = "right"
    for name, seconds in dataclasses.asdict(generation.timings).items():
        table.add_row(name.removesuffix("_seconds").replace("_", " "), f"{seconds:.3f}")
    return table


def _console(to_stderr: bool) -> Console:
    console = Console(stderr=to_stderr, markup=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def _plain(instance: object, leave_out: str) -> dict[str, object]:
    return {name: value for name, value in vars(instance).items() if name != leave_out}


def _range(limits: IntegerLimits) -> str:
    if limits.choices:
        return ", ".join(str(choice) for choice in limits.choices)
    return f"{limits.minimum} to {limits.maximum}"
