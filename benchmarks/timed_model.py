"""The model of timed groups (benchmarks.timed_group): what it serves, without what it takes to serve it."""

from __future__ import annotations

from workers.model_file import ModelFile

STEPS = 4
BATCH_SIZES = [1, 2, 4]


def timed_model(steps: int = STEPS) -> ModelFile:
    """Return a model whose requests have so many steps unless they ask for others."""
    return ModelFile.model_validate(
        {
            "name": "timed",
            "revision": "r1",
            "family": "sd3",
            "path": "nowhere",
            "buckets": [{"width": 64, "height": 64, "batch_sizes": BATCH_SIZES}],
            "limits": {
                "steps": {"min": 1, "max": 50},
                "guidance_scale": {"min": 0.0, "max": 10.0},
                "num_images": {"min": 1, "max": 4},
                "max_sequence_lengths": [77],
                "max_prompt_bytes": 1000,
            },
            "defaults": {"width": 64, "height": 64, "steps": steps, "guidance_scale": 4.0, "max_sequence_length": 77},
        }
    )
