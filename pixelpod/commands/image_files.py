"""The files that `pixelpod generate` writes: their names, format and size."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pixelpod.commands.failure import CommandFailed
from pixelpod.exit_codes import ExitCode

if TYPE_CHECKING:
    from pixelpod.client import GeneratedImage, OutputFormat

STDOUT = "-"
"""The output that is no file."""

ENDINGS: dict[str, OutputFormat] = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""File endings and their formats."""

_SIZE = re.compile(r"(-?\d+)[xX](-?\d+)")


def check_output(output: str, as_json: bool) -> None:
    """Refuse an output that could not be written, before anything is computed for it.

    Raises:
        typer.BadParameter: saying why.
    """
    if output == STDOUT and as_json:
        raise typer.BadParameter("the image and --json can't both go to stdout.", param_hint="--output")
    if not Path(output).parent.is_dir():
        raise typer.BadParameter(f"there is no folder {Path(output).parent}.", param_hint="--output")
    if Path(output).is_dir():
        raise typer.BadParameter(f"{output} is a folder.", param_hint="--output")


def output_format_of(output: str) -> OutputFormat | None:
    """Return the format that the ending of `output` names; None, the model's default, where it has no ending.

    Raises:
        typer.BadParameter: if the ending is another one.
    """
    ending = Path(output).suffix.lower()
    if ending and ending not in ENDINGS:
        raise typer.BadParameter(
            f"{ending} is none of {', '.join(ENDINGS)}; choose one of these, or say --format.", param_hint="--output"
        )
    return ENDINGS.get(ending)


def chosen_size(size: str | None, width: int | None, height: int | None) -> tuple[int | None, int | None]:
    """Return width and height in pixels from --size, or from --width and --height.

    Raises:
        typer.BadParameter: if --size is no size, or both ways are used.
    """
    if size is None:
        return width, height
    if width is not None or height is not None:
        raise typer.BadParameter("say --size, or --width and --height.", param_hint="--size")
    match = _SIZE.fullmatch(size)
    if match is None:
        raise typer.BadParameter(f"{size!r} is no size such as 1024x768.", param_hint="--size")
    return int(match[1]), int(match[2])


def write_images(images: Sequence[GeneratedImage], output: str) -> list[str]:
    """Write the images and return where each is: `output`, or for several its name with -0, -1, ... before the ending.

    Raises:
        CommandFailed: if a file can't be written.
    """
    if output == STDOUT:
        for image in images:
            sys.stdout.buffer.write(image.data)
        sys.stdout.buffer.flush()
        return [STDOUT] * len(images)
    path = Path(output)
    paths = [path] if len(images) == 1 else [path.with_stem(f"{path.stem}-{image.index}") for image in images]
    for image, target in zip(images, paths, strict=True):
        try:
            image.save(target)
        except OSError as error:
            raise CommandFailed(f"cannot write {target}: {error.strerror}", ExitCode.FAILED) from error
    return [str(target) for target in paths]
