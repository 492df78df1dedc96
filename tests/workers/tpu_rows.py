"""The placements of the TPU guide in one execution mode on device "tpu", as a process of its own.

python -m tests.workers.tpu_rows EXECUTION DTYPE FOLDER FAMILY ...
    computes one picture with each family and saves latents and pixels as FOLDER/<family>.npz
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.workers.computing import Picture, compute
from workers.devices import device_named
from workers.families import load_family
from workers.model_file import CompileScope, Execution, FamilyName, ModelFile, Placement, load_model_file

ROWS = {
    FamilyName.SD3: (Placement.SINGLE, CompileScope.TRANSFORMER),
    FamilyName.FLUX: (Placement.OFFLOAD, CompileScope.REPEATED_BLOCKS),
    FamilyName.FLUX2: (Placement.TENSOR_PARALLEL, CompileScope.TRANSFORMER),
}
"""Each family with the placement that the guide serves it in, and the scope that it compiles."""

PICTURE = Picture(seed=7, steps=3)


def changed(model: ModelFile, execution: Execution, dtype: str) -> ModelFile:
    """Return the model as its row asks."""
    placement, scope = ROWS[model.family]
    changes = {"placement": placement, "compile_scope": scope, "execution": execution, "dtype": dtype}
    return model.model_copy(update=changes)


def main(execution: Execution, dtype: str, folder: Path, families: Sequence[FamilyName]) -> None:
    device = device_named("tpu")
    mesh = _one_rank_world(device)
    for family in families:
        model = changed(load_model_file(folder / family / "model.yaml"), execution, dtype)
        loaded = load_family(model, device, mesh if model.placement is Placement.TENSOR_PARALLEL else None)
        latents, pixels = compute(loaded, [PICTURE])
        np.savez(folder / f"{family}.npz", latents=latents.float().cpu().numpy(), pixels=pixels)
    dist.destroy_process_group()


def _one_rank_world(device: Any) -> Any:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group(device.process_group_backend, store=store, rank=0, world_size=1)
    return init_device_mesh(device.name, (1,))


if __name__ == "__main__":
    main(Execution(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), [FamilyName(name) for name in sys.argv[4:]])
