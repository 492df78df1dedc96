"""How torch.compile's graphs reach torch_tpu's compiler: each waited for, or many at once.

Only workers.devices imports this (law 10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch
from torch_tpu._internal.compile import AsyncCompilationSubmitted, resolve_compilations


class OverlappedCompiles:
    """Functions of which many graphs at once can be compiled, on threads of torch_tpu."""

    def __init__(self) -> None:
        self._submitted: list[AsyncCompilationSubmitted] | None = None

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` compiled to one graph for each shape of its arguments."""
        compiled = torch.compile(
            function, backend="tpu", fullgraph=True, dynamic=False, options={"async_compile": True}
        )

        def call(*arguments: Any, **named: Any) -> Any:
            try:
                return compiled(*arguments, **named)
            except AsyncCompilationSubmitted as submitted:
                # The first call with a shape: its graph is in the compiler, and nothing was computed.
                if self._submitted is not None:
                    self._submitted.append(submitted)
                    raise
                resolve_compilations([submitted])
            return compiled(*arguments, **named)

        return call

    def submit(self, calls: Iterable[Callable[[], object]]) -> None:
        """Make calls that end as soon as they meet a new graph, then wait until all of these are compiled.

        Raises:
            Exception: of a call, or what the compiler says about the first graph that it can't compile.
        """
        submitted: list[AsyncCompilationSubmitted] = []
        self._submitted = submitted
        try:
            for call in calls:
                with suppress(AsyncCompilationSubmitted):
                    call()
        finally:
            self._submitted = None
            resolve_compilations(submitted)
