"""Compiles are counted and timed where they happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from workers.compiles import ELSEWHERE, Compiles, CompileTracker
from workers.devices import Programs


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@torch.compile(backend="eager", dynamic=False)
def double(values: torch.Tensor) -> torch.Tensor:
    return values * 2


def test_counts_by_component_and_bucket() -> None:
    observed: list[tuple[str, str, Compiles]] = []
    with CompileTracker(observe=lambda *compile: observed.append(compile)) as tracker:
        with tracker.at("transformer", "64x64"):
            double(torch.ones(2))
            double(torch.ones(2))
            with tracker.at("vae", "64x64"):
                double(torch.ones(3))
            double(torch.ones(4))
        with tracker.at("transformer", "96x64"):
            double(torch.ones(5))
        double(torch.ones(6))
    counts = {("transformer", "64x64"): 2, ("vae", "64x64"): 1, ("transformer", "96x64"): 1, ELSEWHERE: 1}
    assert {place: compiles.compiled for place, compiles in tracker.by_place().items()} == counts
    assert [(component, bucket) for component, bucket, _ in observed] == [
        ("transformer", "64x64"),
        ("vae", "64x64"),
        ("transformer", "64x64"),
        ("transformer", "96x64"),
        ELSEWHERE,
    ]
    assert all(compiles.seconds > 0 for _, _, compiles in observed)
    seconds = sum(compiles.seconds for compiles in tracker.by_component().values())
    assert seconds == pytest.approx(sum(compiles.seconds for _, _, compiles in observed))


def test_nothing_compiled_is_nothing_counted() -> None:
    double(torch.ones(2))
    with CompileTracker() as tracker, tracker.at("transformer", "64x64"):
        double(torch.ones(2))
    assert tracker.by_place() == {}
    assert tracker.take() == {}


def test_a_closed_tracker_does_not_listen() -> None:
    with CompileTracker() as tracker:
        pass
    double(torch.ones(2))
    assert tracker.by_place() == {}


def test_the_place_is_left_when_computing_fails() -> None:
    with CompileTracker() as tracker:
        with pytest.raises(ValueError, match="broken"), tracker.at("transformer", "64x64"):
            raise ValueError("broken")
        double(torch.ones(2))
    assert list(tracker.by_place()) == [ELSEWHERE]


def test_news_are_taken_once() -> None:
    with CompileTracker() as tracker:
        with tracker.at("transformer", "64x64"):
            double(torch.ones(2))
        assert {component: compiles.compiled for component, compiles in tracker.take().items()} == {"transformer": 1}
        with tracker.at("vae", "64x64"):
            double(torch.ones(3))
        assert {component: compiles.compiled for component, compiles in tracker.take().items()} == {"vae": 1}
        assert tracker.take() == {}


class Compiler:
    """A device's compiler, which also compiles operators."""

    def __init__(self) -> None:
        self.programs = Programs(compiled=7, cached=3, seconds=9.0)

    def __call__(self) -> Programs:
        return self.programs

    def compile(self, compiled: int, cached: int = 0, seconds: float = 1.0) -> None:
        before = self.programs
        self.programs = Programs(before.compiled + compiled, before.cached + cached, before.seconds + seconds)


def test_operators_count_where_they_are_compiled() -> None:
    compiler = Compiler()
    with CompileTracker(compiler) as tracker:
        compiler.compile(1)
        with tracker.at("text_encoder", "64x64"):
            compiler.compile(4, cached=2, seconds=2.5)
        compiler.compile(1, seconds=0.5)
        with tracker.at("vae", "64x64"):
            pass
        compiler.compile(3)
        assert tracker.take()["vae"] == Compiles(3, 0, 1.0)
        assert tracker.by_place() == {
            ELSEWHERE: Compiles(1, 0, 1.0),
            ("text_encoder", "64x64"): Compiles(5, 2, 3.0),
            ("vae", "64x64"): Compiles(3, 0, 1.0),
        }


@pytest.mark.parametrize(
    ("programs", "submits", "expected"),
    [
        ((1, 0), False, (1, 0)),  # the graph's program is the graph
        ((5, 0), False, (5, 0)),  # with operators that were on their way
        ((0, 1), False, (0, 1)),  # its program was in the device's cache
        ((0, 0), False, (0, 1)),  # its program was in this process
        ((0, 0), True, (0, 0)),  # its program comes later
    ],
)
def test_a_graph_counts_as_its_program(programs: tuple[int, int], submits: bool, expected: tuple[int, int]) -> None:
    compiler = Compiler()

    def backend(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        compiler.compile(*programs)
        return graph

    with CompileTracker(compiler) as tracker, tracker.at("transformer", "64x64", submits):
        torch.compile(lambda values: values * 3, backend=backend)(torch.ones(2))
        compiles = tracker.take()["transformer"]
        assert (compiles.compiled, compiles.cached) == expected
        assert 0 < compiles.seconds < 1, "the time of the graph, in which its program was made"


def test_a_graph_of_an_earlier_process_is_cached_where_programs_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(counters, "aot_autograd", Counter())

    def backend(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        counters["aot_autograd"]["autograd_cache_hit"] += 1
        return graph

    with CompileTracker() as tracker, tracker.at("transformer", "64x64"):
        torch.compile(lambda values: values * 3, backend=backend)(torch.ones(2))
        compiles = tracker.take()["transformer"]
    assert (compiles.compiled, compiles.cached) == (0, 1)


def test_after_ready_a_compile_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    compiler = Compiler()
    with CompileTracker(compiler) as tracker:
        with tracker.at("transformer", "64x64"):
            double(torch.ones(2))
        tracker.expect_no_more()
        with tracker.at("transformer", "64x64"):
            double(torch.ones(2))
        assert not _warnings(caplog)
        with tracker.at("transformer", "96x64"):
            double(torch.ones(3))
        with tracker.at("vae", "96x64"):
            compiler.compile(2)
        compiler.compile(4)
        tracker.take()
        tracker.take()
    graph, operators, late = _warnings(caplog)
    assert (graph["component"], graph["bucket"], graph["cached"]) == ("transformer", "96x64", 1)
    assert graph["seconds"] > 0
    assert "size mismatch at index 0. expected 2, actual 3" in graph["reason"]
    assert (operators["component"], operators["bucket"], operators["compiled"]) == ("vae", "96x64", 2)
    assert "operators" in operators["reason"]
    assert (late["component"], late["bucket"], late["compiled"]) == ("vae", "96x64", 4)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.levelname == "WARNING"]
