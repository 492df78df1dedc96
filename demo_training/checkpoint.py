"""The demo model as a checkpoint on disk: diffusers layout, float16 weights."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
from diffusers import AutoencoderKLFlux2, Flux2Pipeline
from transformers import PreTrainedTokenizerFast

from demo_training.flow import Painter
from demo_training.networks import scheduler


def assemble(painter: Painter, network: AutoencoderKLFlux2, tokenizer: PreTrainedTokenizerFast) -> Flux2Pipeline:
    """Return the trained parts as a pipeline that shares their weights."""
    pipeline = Flux2Pipeline(
        scheduler=scheduler(),
        tokenizer=tokenizer,
        text_encoder=painter.text_encoder,
        transformer=painter.transformer,
        vae=network,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def save(pipeline: Flux2Pipeline, folder: Path) -> None:
    """Write the pipeline's weights as float16, which halves the files; other files in the folder stay."""
    rounded = Flux2Pipeline(**{name: copy.deepcopy(part) for name, part in pipeline.components.items()})
    rounded.to(torch.float16)
    rounded.save_pretrained(folder)
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o644)
    for file in folder.rglob("config.json"):
        config = json.loads(file.read_text())
        config.pop("_name_or_path", None)  # where it was read from, on the machine that trained it
        file.write_text(json.dumps(config, indent=2) + "\n")
