"""Sizes of three real models, from the shapes in their configs (tests/data/model_configs), and where they fit."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from pixelpod import cli
from pixelpod.commands.plan import ChipName
from workers.devices import device_named
from workers.errors import ModelRefused
from workers.families import load_family
from workers.model_file import Bucket, Defaults, FamilyName, Limits, ModelFile, NumberRange, Placement, load_model_file
from workers.plan import Chip, Plan, make_plan
from workers.tiny_checkpoints import write_tiny_checkpoint

CONFIGS = Path(__file__).parent.parent / "data" / "model_configs"
FAMILIES = {
    "flux1-schnell": FamilyName.FLUX,
    "sd3.5-medium": FamilyName.SD3,
    "flux2-dev": FamilyName.FLUX2,
}
SINGLE, OFFLOAD, TENSOR_PARALLEL = Placement
RANKS = 2


def real_model(name: str, placement: Placement = SINGLE, path: Path | None = None) -> ModelFile:
    return ModelFile(
        name=name,
        family=FAMILIES[name],
        path=path or CONFIGS / name,
        placement=placement,
        buckets=(Bucket(width=1024, height=1024),),
        limits=Limits(guidance_scale=NumberRange(min=0.0, max=10.0), max_sequence_lengths=(256,)),
        defaults=Defaults(width=1024, height=1024, steps=4, guidance_scale=0.0, max_sequence_length=256),
    )


def plan_of(name: str, chip: Chip = Chip.V6E, ranks: int = 1, placement: Placement = SINGLE) -> Plan:
    return make_plan(real_model(name, placement), chip, ranks)


# Sizes

PARAMETERS = {
    "flux1-schnell": {"transformer": 11.89e9, "text_encoder_2": 4.76e9, "text_encoder": 123e6, "vae": 83.8e6},
    "sd3.5-medium": {
        "transformer": 2.24e9,
        "text_encoder_3": 4.76e9,
        "text_encoder_2": 695e6,
        "text_encoder": 124e6,
        "vae": 83.8e6,
    },
    "flux2-dev": {"transformer": 32.2e9, "text_encoder": 24.0e9, "vae": 84.0e6},
}
"""As the models' publishers and others count them."""

TOTAL_GIGABYTES = {"flux1-schnell": 33.7, "sd3.5-medium": 16.3, "flux2-dev": 112.6}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_the_real_models(name: str) -> None:
    plan = plan_of(name)
    counted = {component.name: component.parameters for component in plan.components}
    assert counted == pytest.approx(PARAMETERS[name], rel=0.01)
    total_bytes = sum(component.total_bytes for component in plan.components)
    assert total_bytes / 1e9 == pytest.approx(TOTAL_GIGABYTES[name], abs=0.1)


def test_two_bytes_a_parameter_in_bfloat16_and_four_in_float32() -> None:
    model = real_model("flux1-schnell")
    for dtype, item_bytes in (("bfloat16", 2), ("float16", 2), ("float32", 4)):
        plan = make_plan(model.model_copy(update={"dtype": dtype}), Chip.V7X, ranks=1)
        transformer = next(component for component in plan.components if component.name == "transformer")
        assert transformer.total_bytes == item_bytes * transformer.parameters


def test_sd3_counts_its_table_of_positions() -> None:
    """It is a buffer of 384 x 384 positions, 1536 values each, and part of the 4.94 GB that are published."""
    plan = plan_of("sd3.5-medium")
    transformer = next(component for component in plan.components if component.name == "transformer")
    assert transformer.total_bytes == 2 * (transformer.parameters + 384 * 384 * 1536)
    assert transformer.total_bytes / 1e9 == pytest.approx(4.94, abs=0.01)


@pytest.mark.parametrize(
    ("name", "split"), [("flux1-schnell", {"transformer"}), ("flux2-dev", {"transformer", "text_encoder"})]
)
def test_ranks_share_what_is_split_and_repeat_the_rest(name: str, split: set[str]) -> None:
    components = plan_of(name).components
    assert {component.name for component in components if component.sharded_bytes} == split
    for component in components:
        whole_bytes = component.total_bytes - component.sharded_bytes
        for ranks in (1, 2, 4, 8):
            assert ranks * (component.rank_bytes(ranks) - whole_bytes) == component.sharded_bytes


def test_rank_bytes_are_what_two_ranks_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    families = (FamilyName.FLUX, FamilyName.FLUX2)
    model_files = [write_tiny_checkpoint(family, tmp_path / family) for family in families]
    plans = [make_plan(load_model_file(model_file), Chip.V6E, RANKS) for model_file in model_files]
    planned = [{component.name: component.rank_bytes(RANKS) for component in plan.components} for plan in plans]
    for name, value in device_named("cpu").prepare_environment(RANKS).items():
        monkeypatch.setenv(name, value)
    store = tmp_path / "store"
    with ProcessPoolExecutor(RANKS, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(bytes_held, rank, model_files, store) for rank in range(RANKS)]
        assert [future.result(timeout=90) for future in futures] == [planned] * RANKS


def bytes_held(rank: int, model_files: list[Path], store: Path) -> list[dict[str, int]]:
    """Load each model as one of two ranks, and return the bytes of its components' weights."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    mesh = init_device_mesh("cpu", (RANKS,))
    models = [load_family(load_model_file(model_file), device_named("cpu"), mesh) for model_file in model_files]
    torch.distributed.destroy_process_group()
    return [
        {
            name: sum(local_bytes(weight) for weight in [*module.parameters(), *module.buffers()])
            for name, module in model.pipeline.components.items()
            if isinstance(module, torch.nn.Module)
        }
        for model in models
    ]


def local_bytes(weight: torch.Tensor) -> int:
    return (weight.to_local() if isinstance(weight, DTensor) else weight).nbytes


# Placements

FITS: Mapping[tuple[str, Chip, int], dict[Placement, bool]] = {
    ("flux1-schnell", Chip.V6E, 1): {SINGLE: False, OFFLOAD: True, TENSOR_PARALLEL: False},
    ("flux1-schnell", Chip.V6E, 2): {SINGLE: False, OFFLOAD: True, TENSOR_PARALLEL: True},
    ("flux1-schnell", Chip.V7X, 1): {SINGLE: True, OFFLOAD: True, TENSOR_PARALLEL: True},
    ("sd3.5-medium", Chip.V6E, 1): {SINGLE: True, OFFLOAD: True, TENSOR_PARALLEL: False},
    ("sd3.5-medium", Chip.V7X, 2): {SINGLE: True, OFFLOAD: True, TENSOR_PARALLEL: False},
    ("flux2-dev", Chip.V6E, 4): {SINGLE: False, OFFLOAD: False, TENSOR_PARALLEL: False},
    ("flux2-dev", Chip.V6E, 8): {SINGLE: False, OFFLOAD: False, TENSOR_PARALLEL: True},
    ("flux2-dev", Chip.V6E, 16): {SINGLE: False, OFFLOAD: False, TENSOR_PARALLEL: True},
    ("flux2-dev", Chip.V7X, 1): {SINGLE: False, OFFLOAD: True, TENSOR_PARALLEL: False},
    ("flux2-dev", Chip.V7X, 2): {SINGLE: False, OFFLOAD: True, TENSOR_PARALLEL: True},
}


@pytest.mark.parametrize(("name", "chip", "ranks"), FITS)
def test_placements_that_fit(name: str, chip: Chip, ranks: int) -> None:
    plan = plan_of(name, chip, ranks)
    assert {fit.placement: fit.fits for fit in plan.fits} == FITS[name, chip, ranks]
    assert all(bool(fit.remark) != fit.fits for fit in plan.fits)


def test_bytes_on_the_fullest_device() -> None:
    plan = plan_of("flux1-schnell", ranks=2)
    sizes = {component.name: component.total_bytes for component in plan.components}
    assert plan.fit(SINGLE).weight_bytes == sum(sizes.values())
    assert plan.fit(OFFLOAD).weight_bytes == sizes["transformer"]
    assert plan.fit(TENSOR_PARALLEL).weight_bytes == sum(component.rank_bytes(2) for component in plan.components)
    assert [fit.ranks for fit in plan.fits] == [1, 1, 2]


def test_a_tenth_of_the_device_stays_free() -> None:
    assert plan_of("sd3.5-medium", Chip.V6E).usable_bytes == 28_800_000_000
    assert plan_of("sd3.5-medium", Chip.V7X).usable_bytes == 86_400_000_000


def test_refusal_says_why_and_what_fits() -> None:
    assert plan_of("flux1-schnell").refusal() == (
        "model flux1-schnell: placement single on v6e: 33.7 GB on a device, where 28.8 GB are usable; "
        "placements that fit: offload"
    )
    assert plan_of("flux1-schnell", placement=OFFLOAD).refusal() == ""


def test_refusal_names_the_ranks_that_are_enough() -> None:
    assert "30.2 GB on a device, where 28.8 GB are usable; 8 ranks are enough; placements that fit: none" in (
        plan_of("flux2-dev", ranks=4, placement=TENSOR_PARALLEL).refusal()
    )


@pytest.mark.parametrize(
    ("name", "degrees"), [("flux1-schnell", "1, 2, 3, 4, 6, 8, 12, 24"), ("flux2-dev", "1, 2, 4, 8, 16, 24, 48")]
)
@pytest.mark.parametrize("ranks", [5, 32])
def test_impossible_degree_names_the_valid_ones(name: str, degrees: str, ranks: int) -> None:
    fit = plan_of(name, Chip.V7X, ranks).fit(TENSOR_PARALLEL)
    assert fit.weight_bytes is None
    assert not fit.fits
    assert fit.remark == f"{ranks} ranks can't share its heads evenly; valid degrees: {degrees}"


def test_sd3_has_no_tensor_parallelism() -> None:
    plan = plan_of("sd3.5-medium", ranks=8, placement=TENSOR_PARALLEL)
    assert "family sd3 has no tensor-parallel plan; placements that fit: single, offload" in plan.refusal()


def test_missing_config_is_named(tmp_path: Path) -> None:
    shutil.copytree(CONFIGS / "sd3.5-medium", tmp_path, dirs_exist_ok=True)
    missing = tmp_path / "text_encoder_3" / "config.json"
    missing.unlink()
    with pytest.raises(ModelRefused, match=str(missing)):
        make_plan(real_model("sd3.5-medium", path=tmp_path), Chip.V6E, ranks=1)


def test_checkpoint_of_another_family_is_refused() -> None:
    with pytest.raises(ModelRefused, match="family flux needs a FluxPipeline, not Flux2Pipeline"):
        make_plan(real_model("flux1-schnell", path=CONFIGS / "flux2-dev"), Chip.V6E, ranks=1)


# The command


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of FLUX.1-schnell with placement single; the command's changes of the environment are undone."""
    for name in device_named("cpu").prepare_environment(ranks=1):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "model.yaml"
    file.write_text(real_model("flux1-schnell").model_dump_json(exclude_unset=True))  # JSON is YAML
    return file


def test_command_prints_both_tables(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(model_file), "--chip", "v7x", "--ranks", "8"]) == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert ["transformer", "11.89 B", "23.8 GB", "8.7 GB"] in rows
    assert ["all", "16.86 B", "33.7 GB", "18.7 GB"] in rows
    assert ["single (asked for)", "1", "33.7 GB", "yes", ""] in rows
    assert ["tensor_parallel", "8", "18.7 GB", "yes", ""] in rows


def test_command_refuses_what_does_not_fit(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(model_file), "--chip", "v6e"]) == 2
    printed = capsys.readouterr()
    assert "offload" in printed.out
    (line,) = printed.err.splitlines()
    assert line.startswith("error: model flux1-schnell: placement single on v6e: 33.7 GB")


def test_command_prints_json(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(model_file), "--chip", "v7x", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["asked"] == "single"
    assert [fit["fits"] for fit in printed["fits"]] == [True, True, True]

    assert cli.main(["plan", str(model_file), "--chip", "v6e", "--ranks", "5", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == 2
    assert [fit["fits"] for fit in error["plan"]["fits"]] == [False, True, False]


def test_command_refuses_a_model_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(tmp_path / "nothing.yaml"), "--chip", "v6e"]) == 2
    assert "nothing.yaml" in capsys.readouterr().err


def test_command_knows_every_chip() -> None:
    assert set(get_args(ChipName)) == set(Chip)
