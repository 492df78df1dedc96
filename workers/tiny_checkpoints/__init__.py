"""Tiny checkpoints with random weights, in the layout of the real ones, for tests and first runs.

They need no network and about a megabyte each. Their images mean nothing, but each prompt and each seed gives another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import yaml
from diffusers import DiffusionPipeline

from workers.model_file import FamilyName
from workers.tiny_checkpoints.flux import flux_pipeline
from workers.tiny_checkpoints.flux2 import flux2_pipeline
from workers.tiny_checkpoints.sd3 import sd3_pipeline

PIPELINES: Mapping[FamilyName, Callable[[], DiffusionPipeline]] = {
    FamilyName.FLUX: flux_pipeline,
    FamilyName.FLUX2: flux2_pipeline,
    FamilyName.SD3: sd3_pipeline,
}

GUIDANCE_SCALES: Mapping[FamilyName, float] = {FamilyName.FLUX: 3.5, FamilyName.FLUX2: 4.0, FamilyName.SD3: 7.0}
"""The defaults of the diffusers pipelines."""


def write_tiny_checkpoint(family: FamilyName, folder: Path) -> Path:
    """Write `folder`/checkpoint and `folder`/model.yaml; return the path of the latter.

    The same bytes come out each time, in any process. An earlier checkpoint in `folder` is overwritten.
    """
    PIPELINES[family]().save_pretrained(folder / "checkpoint")
    model_file = folder / "model.yaml"
    model_file.write_text(yaml.safe_dump(_model_document(family), sort_keys=False), encoding="utf-8")
    return model_file


def _model_document(family: FamilyName) -> dict[str, object]:
    """Return what the model file holds."""
    return {
        "name": f"tiny-{family}",
        "revision": "random-0",
        "family": str(family),
        "path": "checkpoint",
        "dtype": "float32",
        "placement": "single" if family is FamilyName.SD3 else "tensor_parallel",
        "execution": "eager",
        "buckets": [
            {"width": 64, "height": 64, "batch_sizes": [1, 2, 4]},
            {"width": 96, "height": 64, "batch_sizes": [1, 2, 4]},
        ],
        "limits": {"max_sequence_lengths": [64, 128]},
        "defaults": {
            "width": 64,
            "height": 64,
            "steps": 4,
            "guidance_scale": GUIDANCE_SCALES[family],
            "max_sequence_length": 128,
        },
    }
