"""Placements and executions change where and how a model runs, not what it computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.workers.computing import Picture, compute, load_single, start
from workers.compiles import CompileTracker
from workers.devices import Cpu
from workers.errors import ModelRefused
from workers.families import load_family
from workers.model_file import Bucket, CompileScope, Execution, FamilyName, ModelFile, Placement

ROUNDING = 1e-5
"""Bound of the difference in float32 latents where weights lie elsewhere in memory: kernels round by alignment."""


class TracedCpu(Cpu):
    """Traces and guards as torch.compile does everywhere, and runs what it traced without a compiler: fast."""

    compile_backend = "eager"


@pytest.fixture
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8, accumulated_recompile_limit=256):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", FamilyName)
def test_offload_computes_what_single_does(name: FamilyName, tiny_model: Callable[..., ModelFile]) -> None:
    model, pictures = tiny_model(name), [Picture(steps=4), Picture(steps=4, seed=1)]
    expected_latents, expected_pixels = compute(load_single(model), pictures)
    offloaded = load_single(model, placement=Placement.OFFLOAD)
    for _ in range(2):
        latents, pixels = compute(offloaded, pictures)
        assert torch.allclose(latents, expected_latents, rtol=0, atol=ROUNDING)
        assert np.abs(pixels.astype(int) - expected_pixels).max() <= 1
        assert hasattr(offloaded.pipeline.transformer, "_hf_hook"), "the model is not offloaded"


def test_a_batch_given_up_leaves_an_offloaded_model_usable(tiny_model: Callable[..., ModelFile]) -> None:
    offloaded = load_single(tiny_model(FamilyName.SD3), placement=Placement.OFFLOAD)
    expected, _ = compute(offloaded, [Picture()])
    offloaded.step(start(offloaded, [Picture(seed=1)]))
    offloaded.release()
    latents, _ = compute(offloaded, [Picture()])
    assert torch.equal(latents, expected)


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.parametrize("placement", [Placement.SINGLE, Placement.OFFLOAD])
@pytest.mark.parametrize("name", FamilyName)
def test_compiled_traces_the_whole_transformer(
    name: FamilyName, placement: Placement, tiny_model: Callable[..., ModelFile]
) -> None:
    changes = {"execution": Execution.COMPILED, "placement": placement}
    compiled = load_family(tiny_model(name).model_copy(update=changes), TracedCpu(), mesh=None)
    expected, _ = compute(load_single(tiny_model(name)), [Picture()])
    with CompileTracker() as tracker:
        latents, _ = compute(compiled, [Picture()])
        assert _graphs(tracker) == 1
        # Neither prompt, seed, steps nor the scale of guidance makes another graph.
        compute(compiled, [Picture(prompt="a long prompt " * 20, seed=2**64 - 1, steps=5, guidance_scale=7.5)])
        assert _graphs(tracker) == 1
    assert torch.allclose(latents, expected, rtol=0, atol=ROUNDING)


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.parametrize(
    ("name", "scope", "graphs"),
    [
        # Blocks of one class share a graph, but for the last of SD3, which drops the text, and the first single one of
        # FLUX.1, whose input lies otherwise in memory.
        (FamilyName.FLUX, CompileScope.REPEATED_BLOCKS, 3),
        (FamilyName.FLUX2, CompileScope.REPEATED_BLOCKS, 2),
        (FamilyName.SD3, CompileScope.REPEATED_BLOCKS, 2),
        # The transformer, the decoder, and the text encoders, of which SD3's two CLIPs share theirs.
        pytest.param(FamilyName.FLUX, CompileScope.ALL, 4, marks=pytest.mark.slow),
        pytest.param(FamilyName.FLUX2, CompileScope.ALL, 3, marks=pytest.mark.slow),
        (FamilyName.SD3, CompileScope.ALL, 4),
    ],
)
@pytest.mark.parametrize("placement", [Placement.SINGLE, pytest.param(Placement.OFFLOAD, marks=pytest.mark.slow)])
def test_scopes_compile_what_they_say(
    name: FamilyName, scope: CompileScope, graphs: int, placement: Placement, tiny_model: Callable[..., ModelFile]
) -> None:
    changes = {"execution": Execution.COMPILED, "placement": placement, "compile_scope": scope}
    compiled = load_family(tiny_model(name).model_copy(update=changes), TracedCpu(), mesh=None)
    expected, expected_pixels = compute(load_single(tiny_model(name)), [Picture()])
    with CompileTracker() as tracker:
        latents, pixels = compute(compiled, [Picture()])
        assert _graphs(tracker) == graphs
        compute(compiled, [Picture(prompt="a cat", seed=2**64 - 1, steps=5, guidance_scale=7.5)])
        assert _graphs(tracker) == graphs
    assert torch.allclose(latents, expected, rtol=0, atol=ROUNDING)
    assert np.abs(pixels.astype(int) - expected_pixels).max() <= 1


@pytest.mark.usefixtures("_fresh_dynamo")
def test_every_shape_of_the_model_file_fits_the_recompile_limit(tiny_model: Callable[..., ModelFile]) -> None:
    sizes = (1, 2, 3)
    buckets = tuple(Bucket(width=width, height=64, batch_sizes=sizes) for width in (64, 96))
    changes = {"execution": Execution.COMPILED, "placement": Placement.SINGLE, "buckets": buckets}
    compiled = load_family(tiny_model(FamilyName.SD3).model_copy(update=changes), TracedCpu(), mesh=None)

    def compute_all(picture: Picture) -> None:
        for width, size, guidance_scale in itertools.product((64, 96), sizes, (1.0, 7.0)):
            compute(compiled, [replace(picture, width=width, guidance_scale=guidance_scale)], batch_size=size)

    with CompileTracker() as tracker:
        compute_all(Picture(steps=1))
        # Guided batches are 2, 4 and 6 inside, and 2 is there already.
        assert _graphs(tracker) == 2 * len({1, 2, 3, 4, 6})
        compute_all(Picture(steps=2, prompt="a cat", seed=9))
        assert _graphs(tracker) == 2 * len({1, 2, 3, 4, 6})


def test_fused_is_refused_before_weights_load(tiny_model: Callable[..., ModelFile]) -> None:
    model = tiny_model(FamilyName.SD3)
    with pytest.raises(ModelRefused, match="fused"):
        load_single(model, execution=Execution.FUSED, path=model.path / "missing")


def _graphs(tracker: CompileTracker) -> int:
    return sum(compiles.compiled for compiles in tracker.by_component().values())
