"""Faults on demand in rank processes that have this folder in PYTHONPATH: the seed of an image says which, and where.

See tests.faults.codes. Without RANK in the environment nothing happens.
"""

from __future__ import annotations

import os
import time
from typing import Any

BAD_CACHE_VARIABLE = "PIXELPOD_TEST_BAD_CACHE"


def install(rank: int) -> None:
    """Make the model's stages fail where a seed asks for it."""
    from tests.faults.codes import Fault, fault_of
    from workers.families.base import Family

    start, step, decode = Family.start, Family.step, Family.decode
    raises = {
        Fault.RANK_1_RAISES_IN_STEP: ValueError if rank == 1 else None,
        Fault.ALL_RAISE_IN_STEP: ValueError,
        Fault.OUT_OF_MEMORY: MemoryError,
    }

    def faulty_start(self: Any, batch: Any, *conditionings: Any) -> Any:
        faults = {fault_of(slot.seed) for slot in batch.slots}
        if Fault.RANK_1_RAISES_IN_START in faults and rank == 1:
            raise ValueError("as the seed says")
        denoising = start(self, batch, *conditionings)
        denoising.faults = faults
        return denoising

    def faulty_step(self: Any, denoising: Any) -> None:
        if denoising.step == 1:
            for fault in denoising.faults:
                if error := raises.get(fault):
                    raise error("as the seed says")
            if Fault.RANK_1_HANGS_IN_STEP in denoising.faults and rank == 1:
                time.sleep(3600)
        step(self, denoising)

    def faulty_decode(self: Any, denoising: Any) -> Any:
        if Fault.DECODE_RAISES in denoising.faults:
            raise ValueError("as the seed says")
        return decode(self, denoising)

    Family.start, Family.step, Family.decode = faulty_start, faulty_step, faulty_decode


def fail_with_compile_cache() -> None:
    """Fail to load a model as long as there is a compile cache, as with a bad program in it."""
    from workers.families.base import Family

    load = Family.load.__func__  # type: ignore[attr-defined]

    def load_without_cache(family_class: Any, *arguments: Any) -> Any:
        if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
            raise RuntimeError("as the environment says")
        return load(family_class, *arguments)

    Family.load = classmethod(load_without_cache)


if "RANK" in os.environ:
    install(int(os.environ["RANK"]))
    if BAD_CACHE_VARIABLE in os.environ:
        fail_with_compile_cache()
