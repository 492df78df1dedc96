"""What differs between devices."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import diffusers.hooks.tensor_parallel
import pytest
import torch
from diffusers import ModelMixin

from workers.devices import Cuda, Device, device_named
from workers.errors import ModelRefused
from workers.model_file import Execution, FamilyName, ModelFile

NAMES = ("cpu", "tpu", "cuda")


@pytest.mark.parametrize("name", NAMES)
def test_devices_have_a_cpu_process_group_and_name_their_compiler(name: str) -> None:
    device = device_named(name)
    assert device.name == name
    assert "gloo" in device.process_group_backend
    assert device.compile_backend


def test_other_devices_are_unknown() -> None:
    with pytest.raises(KeyError):
        device_named("mps")


@pytest.mark.parametrize(("name", "runs"), [("cpu", False), ("tpu", True), ("cuda", False)])
def test_only_tpu_fuses(name: str, runs: bool, tiny_model: Callable[[FamilyName], ModelFile]) -> None:
    model = tiny_model(FamilyName.SD3).model_copy(update={"execution": Execution.FUSED})
    if runs:
        device_named(name).verify(model)
    else:
        with pytest.raises(ModelRefused, match=f"fused needs device tpu; on {name} use eager"):
            device_named(name).verify(model)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("execution", [Execution.EAGER, Execution.COMPILED])
def test_eager_and_compiled_run_everywhere(
    name: str, execution: Execution, tiny_model: Callable[[FamilyName], ModelFile]
) -> None:
    device_named(name).verify(tiny_model(FamilyName.SD3).model_copy(update={"execution": execution}))


def test_cpu_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    cpu = device_named("cpu")
    assert "OMP_NUM_THREADS" not in cpu.prepare_environment(1)
    assert cpu.prepare_environment(2)["OMP_NUM_THREADS"] == "3"
    assert cpu.prepare_environment(8)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert "OMP_NUM_THREADS" not in cpu.prepare_environment(8)


@pytest.mark.parametrize("device", [device_named("cpu"), Cuda()], ids=lambda device: device.name)
def test_other_backends_are_not_loaded(device: Device) -> None:
    assert device.prepare_environment(1)["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"


def test_a_launcher_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from workers.devices import device_named"
    code += "; print(sorted(device_named('cpu').prepare_environment(1)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "['CUDA_VISIBLE_DEVICES', 'TORCH_DEVICE_BACKEND_AUTOLOAD']", run.stderr


def test_tpu_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_tpu", None)
    with pytest.raises(ModelRefused, match=r"pip install 'pixelpod\[tpu\]'"):
        device_named("tpu").prepare_environment(1)


def test_cpu_device_is_the_same_for_every_rank() -> None:
    cpu = device_named("cpu")
    assert cpu.torch_device(0) == cpu.torch_device(3) == torch.device("cpu")
    cpu.synchronize()


def test_sharding_on_cpu_is_undone() -> None:
    def state() -> tuple[object, object]:
        return diffusers.hooks.tensor_parallel._SUPPORTED_TP_DEVICES, ModelMixin._resolve_parallel_config

    before = state()
    assert "cpu" not in before[0], "diffusers shards on a CPU mesh by itself now: Cpu.sharding can go"
    with device_named("cpu").sharding():
        assert "cpu" in state()[0]
    assert state() == before
    with pytest.raises(ValueError, match="broken"), device_named("cpu").sharding():
        raise ValueError("broken")
    assert state() == before


def test_compile_cache_lies_in_the_folder(tmp_path: Path) -> None:
    for name in ("cpu", "cuda"):
        assert device_named(name).cache_environment(tmp_path) == {"TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/torch"}
    assert device_named("tpu").cache_environment(tmp_path) == {
        "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/torch",
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": f"{tmp_path}/torch_tpu",
        "TORCH_TPU_INTERNAL_TIER3_COMPILATION_CACHE_LOCAL_BACKUP_TASK": "0",
    }
