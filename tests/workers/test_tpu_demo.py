"""The demo model on torch_tpu keeps its accuracy: a small sample in each execution and type."""

from __future__ import annotations

import json

import pytest

from tests.emulation import require_emulated_tpu
from tests.workers.tpu_processes import SECONDS, run_on_tpu
from workers.model_file import Execution

require_emulated_tpu()

FLOORS = {"colour": 0.8, "background": 0.8, "count": 0.8, "position": 0.8}
"""Of 16 prompts."""


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize(
    ("execution", "dtype"),
    [
        pytest.param(Execution.EAGER, "float32", marks=pytest.mark.slow),
        pytest.param(Execution.COMPILED, "float32", marks=pytest.mark.slow),
        (Execution.COMPILED, "bfloat16"),
    ],
)
def test_it_draws_what_prompts_ask_for(execution: Execution, dtype: str) -> None:
    scores = json.loads(run_on_tpu("tests.workers.tpu_demo", [execution, dtype], execution))
    assert {attribute: scores[attribute] for attribute, floor in FLOORS.items() if scores[attribute] < floor} == {}
