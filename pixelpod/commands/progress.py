"""The progress bar of `pixelpod generate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pixelpod.client import Progress as ProgressEvent


@contextmanager
def progress_bar() -> Iterator[Callable[[ProgressEvent], None]]:
    """Show a progress bar on standard error while the block runs, if that is a terminal; yields what moves it."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("waiting", total=None, left="")

        def show(event: ProgressEvent) -> None:
            left = f"{event.seconds_left:.1f} s left"
            bar.update(task, description="drawing", completed=event.step, total=event.steps, left=left)

        yield show
