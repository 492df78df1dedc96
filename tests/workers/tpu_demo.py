"""The demo model on device "tpu", as a process of its own.

python -m tests.workers.tpu_demo EXECUTION DTYPE
    prints last, as JSON, how often each attribute of 16 held-out prompts is right
"""

from __future__ import annotations

import json
import sys

import torch

from demo_training.judge.__main__ import serve
from demo_training.prompts import held_out_prompts
from demo_training.sampling import score
from pixelpod.commands.default_model import default_model_file
from workers.devices import device_named
from workers.families import load_family
from workers.model_file import Execution, Placement, load_model_file

torch.set_num_threads(1)

PROMPTS = 16
SEED = 5


def main(execution: Execution, dtype: str) -> None:
    changes = {"execution": execution, "dtype": dtype, "placement": Placement.SINGLE}
    model = load_model_file(default_model_file()).model_copy(update=changes)
    family = load_family(model, device_named("tpu"), mesh=None)
    prompts, wishes = zip(*held_out_prompts(PROMPTS, SEED), strict=True)
    images = serve(family, prompts, model.defaults.width, model.defaults.steps, SEED)
    print(json.dumps(score(images, wishes)))


if __name__ == "__main__":
    main(Execution(sys.argv[1]), sys.argv[2])
