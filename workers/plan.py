"""Does a model fit? Bytes on each device for every placement, from the checkpoint's configs alone.

No weight is read: components are built on torch's meta device, which keeps shapes only. The command is
`pixelpod plan`; docs/sizing.md shows its tables.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import diffusers
import torch
import transformers
from diffusers.hooks.tensor_parallel import resolve_tp_shard_specs

from workers.checkpoint import LAYOUTS, sharing_ranks, valid_degrees
from workers.checkpoint_files import Config
from workers.errors import ModelRefused
from workers.model_file import ModelFile, Placement


class Chip(StrEnum):
    """The accelerators that plans are made for."""

    V6E = "v6e"
    V7X = "v7x"


DEVICE_BYTES = {Chip.V6E: 32 * 10**9, Chip.V7X: 96 * 10**9}
"""Memory of one device, from Google's public specifications: a v6e chip is one device of 32 GB, a v7x chip (Ironwood,
192 GB) is two devices of 96 GB."""

RESERVED_FRACTION = 0.1
"""Share of a device's memory kept free of weights: for activations (the VAE decoder's are the largest, some 0.5 GB for
each of the few that live together at 1024x1024), compiled programs and the runtime."""


@dataclass(frozen=True)
class Component:
    """One component's weights: its parameters, and its buffers such as SD3's table of positions.

    Attributes:
        name: The component's name in the pipeline, such as "transformer".
        parameters: How many parameters it has.
        total_bytes: All its weights, in the model file's dtype.
        sharded_bytes: The part of them that tensor parallelism splits over the ranks; each holds the rest whole.
    """

    name: str
    parameters: int
    total_bytes: int
    sharded_bytes: int

    def rank_bytes(self, ranks: int) -> int:
        """Return what each of so many ranks holds under tensor parallelism."""
        return self.total_bytes - self.sharded_bytes + -(-self.sharded_bytes // ranks)


@dataclass(frozen=True)
class Fit:
    """One placement on one chip.

    Attributes:
        placement: Which.
        ranks: Devices that a group of this placement runs on.
        weight_bytes: Weights on the fullest device at the worst moment; None where the placement is impossible.
        fits: Whether the device holds them beside the reserve.
        remark: Why it is impossible or does not fit; empty when it fits.
    """

    placement: Placement
    ranks: int
    weight_bytes: int | None
    fits: bool
    remark: str = ""


@dataclass(frozen=True)
class Plan:
    """Where a model fits.

    Attributes:
        model: The model's name.
        asked: The placement that the model file asks for.
        chip: The accelerator.
        device_bytes: Memory of one device.
        usable_bytes: What weights may take of it.
        components: What has weights.
        fits: A row for each placement.
    """

    model: str
    asked: Placement
    chip: Chip
    device_bytes: int
    usable_bytes: int
    components: tuple[Component, ...]
    fits: tuple[Fit, ...]

    def fit(self, placement: Placement) -> Fit:
        """Return the row of `placement`."""
        return next(fit for fit in self.fits if fit.placement is placement)

    def refusal(self) -> str:
        """Return why the placement that the file asks for can't be, and which can; empty when it fits."""
        asked = self.fit(self.asked)
        if asked.fits:
            return ""
        others = ", ".join(fit.placement for fit in self.fits if fit.fits) or "none"
        return (
            f"model {self.model}: placement {self.asked} on {self.chip}: {asked.remark}; placements that fit: {others}"
        )


def make_plan(model: ModelFile, chip: Chip, ranks: int) -> Plan:
    """Size every component of `model` and try every placement on devices of `chip`.

    Args:
        model: The model file; its folder needs model_index.json and the components' config.json only.
        chip: The accelerator.
        ranks: Devices that placement tensor_parallel would split the model over.

    Raises:
        ModelRefused: if a config is missing, damaged, or of another family.
    """
    dtype: torch.dtype = getattr(torch, model.dtype)
    components = tuple(_size(name, module, dtype) for name, module in _components(model))
    sizes = [component.total_bytes for component in components]
    usable_bytes = round(DEVICE_BYTES[chip] * (1 - RESERVED_FRACTION))
    return Plan(
        model=model.name,
        asked=model.placement,
        chip=chip,
        device_bytes=DEVICE_BYTES[chip],
        usable_bytes=usable_bytes,
        components=components,
        fits=(
            _fit(Placement.SINGLE, 1, sum(sizes), usable_bytes),
            _fit(Placement.OFFLOAD, 1, max(sizes), usable_bytes),  # one component at a time is on the device
            _fit_tensor_parallel(model, components, ranks, usable_bytes),
        ),
    )


def _fit(placement: Placement, ranks: int, weight_bytes: int, usable_bytes: int) -> Fit:
    fits = weight_bytes <= usable_bytes
    remark = "" if fits else f"{_gigabytes(weight_bytes)} on a device, where {_gigabytes(usable_bytes)} are usable"
    return Fit(placement, ranks, weight_bytes, fits, remark)


def _fit_tensor_parallel(model: ModelFile, components: tuple[Component, ...], ranks: int, usable_bytes: int) -> Fit:
    placement, degrees = Placement.TENSOR_PARALLEL, valid_degrees(model)
    if not degrees:
        return Fit(placement, ranks, None, False, f"family {model.family} has no tensor-parallel plan")
    if ranks not in degrees:
        remark = f"{ranks} ranks can't share its heads evenly; valid degrees: {', '.join(map(str, degrees))}"
        return Fit(placement, ranks, None, False, remark)
    shares = {
        degree: sum(component.rank_bytes(sharing_ranks(model, component.name, degree)) for component in components)
        for degree in degrees
    }
    fit = _fit(placement, ranks, shares[ranks], usable_bytes)
    enough = next((degree for degree in degrees if shares[degree] <= usable_bytes), None)
    if fit.fits or enough is None:
        return fit
    return replace(fit, remark=f"{fit.remark}; {enough} ranks are enough")


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def _components(model: ModelFile) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the pipeline's components that have weights, on the meta device, by name."""
    layout, index = LAYOUTS[model.family], Config.read(model.path / "model_index.json")
    found = index.value("_class_name")
    if found != layout.pipeline_class:
        raise ModelRefused(f"{index.file}: family {model.family} needs a {layout.pipeline_class}, not {found}")
    for name, (library, class_name) in layout.components.items():
        config = Config.read(model.path / name / "config.json")
        kind = getattr(diffusers if library == "diffusers" else transformers, class_name)
        with torch.device("meta"):
            if library == "diffusers":
                module = kind.from_config(dict(config.values))
            else:
                module = kind(kind.config_class.from_dict(dict(config.values)))
        yield name, module


def _size(name: str, module: torch.nn.Module, dtype: torch.dtype) -> Component:
    weights = dict([*module.named_parameters(), *module.named_buffers()])
    sizes = {
        key: weight.numel() * (dtype if weight.is_floating_point() else weight.dtype).itemsize
        for key, weight in weights.items()
    }
    return Component(
        name=name,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        total_bytes=sum(sizes.values()),
        sharded_bytes=sum(sizes[key] for key in _sharded_parameters(module)),
    )


def _sharded_parameters(module: torch.nn.Module) -> set[str]:
    """Return the names of the parameters that tensor parallelism cuts into slices, by the model class's own plan."""
    if isinstance(module, diffusers.ModelMixin):
        specs = resolve_tp_shard_specs(module, getattr(module, "_tp_plan", None) or {}, tp_degree=1)
        return {name for name, spec in specs.items() if spec.dim is not None}
    # Mistral's planned layers have no biases, so that all their parameters are cut.
    return {
        name
        for name, _ in module.named_parameters()
        for pattern in getattr(module, "tp_plan", None) or {}
        if fnmatch.fnmatchcase(name.rpartition(".")[0], pattern)
    }
