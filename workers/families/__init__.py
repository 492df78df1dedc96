"""The pipeline families: the code that differs between FLUX.1, FLUX.2 and Stable Diffusion 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.devices import Device
from workers.families.base import Conditioning, Denoising, Family, NotFinite
from workers.families.flux import Flux
from workers.families.flux2 import Flux2
from workers.families.sd3 import StableDiffusion3
from workers.model_file import FamilyName, ModelFile

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["FAMILIES", "Conditioning", "Denoising", "Family", "NotFinite", "load_family"]

FAMILIES: dict[FamilyName, type[Family]] = {family.name: family for family in (Flux, Flux2, StableDiffusion3)}
"""The table. A new family is a new row here."""


def load_family(model: ModelFile, device: Device, mesh: DeviceMesh | None) -> Family:
    """Load the model on this rank. See `Family.load`."""
    return FAMILIES[model.family].load(model, device, mesh)
