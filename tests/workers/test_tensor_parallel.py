"""Two ranks compute what one does, each with its own slices of the weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from tests.workers.computing import Picture, compute, load_single
from tests.workers.worlds import world
from workers.devices import device_named
from workers.errors import ModelRefused
from workers.families import Family, load_family
from workers.model_file import FamilyName, ModelFile, Placement, load_model_file

SHARDED = {FamilyName.FLUX: ("transformer",), FamilyName.FLUX2: ("transformer", "text_encoder")}
"""The components that have a plan."""

PICTURES = [Picture(steps=4), Picture(prompt="a cat", seed=2**64 - 1, steps=4)]
TOLERANCE = 1e-4
"""Of float32 latents between one rank and two."""
MAX_SHARE = 0.7
"""Of a sharded component's parameters that one rank of two holds: half of what the plan covers, and the rest."""


def compute_on_rank(files: dict[FamilyName, Path]) -> dict[FamilyName, dict[str, Any]]:
    """Return what this rank of a world computed and holds, by family."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    results = {}
    for name, file in files.items():
        family = load_family(load_model_file(file), device_named("cpu"), mesh)
        latents, pixels = compute(family, PICTURES, batch_size=4)
        results[name] = {"latents": latents.numpy(), "pixels": pixels, "parameters": count_parameters(family)}
    return results


def count_parameters(family: Family) -> dict[str, int]:
    """Return how many parameters of each component lie in this process."""
    components = {
        name: module for name, module in family.pipeline.components.items() if isinstance(module, torch.nn.Module)
    }
    return {
        name: sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in module.parameters())
        for name, module in components.items()
    }


@pytest.fixture(scope="module")
def ranks(tiny_model_file: Callable[[FamilyName], Path]) -> list[Any]:
    """Return the results of the two ranks of a world."""
    with world(2) as two_ranks:
        return two_ranks.run(compute_on_rank, {name: tiny_model_file(name) for name in SHARDED})


@pytest.fixture(scope="module")
def single(tiny_model: Callable[[FamilyName], ModelFile]) -> Callable[[FamilyName], Family]:
    return functools.cache(lambda name: load_single(tiny_model(name)))


@pytest.fixture
def mesh_of_one() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("name", SHARDED)
def test_two_ranks_compute_what_one_does(name: FamilyName, ranks: list[Any], single: Callable[..., Family]) -> None:
    latents, pixels = compute(single(name), PICTURES, batch_size=4)
    assert np.abs(ranks[0][name]["latents"] - latents.numpy()).max() < TOLERANCE
    assert np.abs(ranks[0][name]["pixels"].astype(int) - pixels).max() <= 1


@pytest.mark.parametrize("name", SHARDED)
def test_ranks_agree_bit_for_bit(name: FamilyName, ranks: list[Any]) -> None:
    assert np.array_equal(ranks[0][name]["latents"], ranks[1][name]["latents"])


@pytest.mark.parametrize("name", SHARDED)
def test_each_rank_holds_its_slices_only(name: FamilyName, ranks: list[Any], single: Callable[..., Family]) -> None:
    whole = count_parameters(single(name))
    for rank in ranks:
        held = rank[name]["parameters"]
        assert held.keys() == whole.keys()
        for component, parameters in whole.items():
            if component in SHARDED[name]:
                assert held[component] < MAX_SHARE * parameters, component
            else:
                assert held[component] == parameters, component
    for component in SHARDED[name]:
        assert sum(rank[name]["parameters"][component] for rank in ranks) >= whole[component]


@pytest.mark.timeout(300)
def test_a_text_encoder_with_few_heads_is_there_in_copies(
    tiny_model_file: Callable[[FamilyName], Path], single: Callable[..., Family]
) -> None:
    """FLUX.2's has 2 key-value heads here: of four ranks two hold one copy, and two another."""
    with world(4) as four_ranks:
        ranks = four_ranks.run(compute_on_rank, {FamilyName.FLUX2: tiny_model_file(FamilyName.FLUX2)})
    results = [rank[FamilyName.FLUX2] for rank in ranks]
    latents, pixels = compute(single(FamilyName.FLUX2), PICTURES, batch_size=4)
    assert np.abs(results[0]["latents"] - latents.numpy()).max() < TOLERANCE
    assert np.abs(results[0]["pixels"].astype(int) - pixels).max() <= 1
    assert all(np.array_equal(result["latents"], results[0]["latents"]) for result in results)
    whole = count_parameters(single(FamilyName.FLUX2))
    held = results[0]["parameters"]
    assert whole["text_encoder"] / 2 <= held["text_encoder"] < MAX_SHARE * whole["text_encoder"]
    assert whole["transformer"] / 4 <= held["transformer"] < whole["transformer"] / 2


@pytest.mark.parametrize("name", SHARDED)
def test_one_rank_computes_what_an_unsharded_model_does(
    name: FamilyName,
    mesh_of_one: DeviceMesh,
    tiny_model: Callable[[FamilyName], ModelFile],
    single: Callable[..., Family],
) -> None:
    model = tiny_model(name)
    assert model.placement is Placement.TENSOR_PARALLEL
    latents, pixels = compute(load_family(model, device_named("cpu"), mesh_of_one), PICTURES)
    expected_latents, expected_pixels = compute(single(name), PICTURES)
    assert torch.equal(latents, expected_latents)
    assert np.array_equal(pixels, expected_pixels)


def test_a_family_without_a_plan_is_refused(
    mesh_of_one: DeviceMesh, tiny_model: Callable[[FamilyName], ModelFile]
) -> None:
    model = tiny_model(FamilyName.SD3).model_copy(update={"placement": Placement.TENSOR_PARALLEL})
    with pytest.raises(ModelRefused, match="sd3 has no tensor-parallel plan; use placement single"):
        load_family(model, device_named("cpu"), mesh_of_one)
