"""The model files that the package ships, with stand-ins for their checkpoints: real configs, no weights."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import workers
from workers.checkpoint import LAYOUTS, WEIGHTS_STEMS
from workers.model_file import ModelFile

MODEL_FILES = Path(workers.__file__).parent / "models"
CONFIGS = Path(__file__).parent.parent / "data" / "model_configs"
EMPTY_SAFETENSORS = struct.pack("<Q", 2) + b"{}"


def with_configs(model: ModelFile) -> ModelFile:
    return model.model_copy(update={"path": CONFIGS / model.name})


def with_hollow_checkpoint(model: ModelFile, folder: Path) -> ModelFile:
    """Return the model with a checkpoint of its real configs, and weights and vocabularies without content."""
    shutil.copytree(CONFIGS / model.name, folder, dirs_exist_ok=True)
    layout = LAYOUTS[model.family]
    for component, (library, _) in layout.components.items():
        (folder / component / f"{WEIGHTS_STEMS[library]}.safetensors").write_bytes(EMPTY_SAFETENSORS)
    for tokenizer in layout.tokenizers:
        (folder / tokenizer).mkdir()
        (folder / tokenizer / "tokenizer.json").write_text("{}")
    return model.model_copy(update={"path": folder})
