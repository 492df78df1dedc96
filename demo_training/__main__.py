"""Trains the demo model from nothing, in stages. See README.md for the commands."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from diffusers import AutoencoderKLFlux2

from demo_training import ranks
from demo_training.autoencoder_training import judge_reconstructions, train_autoencoder
from demo_training.checkpoint import assemble, save
from demo_training.dataset import Statistics
from demo_training.flow import Painter
from demo_training.latents import sketch
from demo_training.networks import autoencoder
from demo_training.painter_training import PainterTraining, Plan
from demo_training.prompts import held_out_prompts
from demo_training.sampling import DEFAULT_STEPS, paint_tokens, score
from demo_training.tokenizer import demo_tokenizer

REPORT_PROMPTS = 100
REPORT_PROMPTS_SEED = 1
"""Not the seed of the final judge, whose prompts training never reports on."""


def main() -> None:
    """Run one stage."""
    arguments = _parse_arguments()
    torch.set_num_threads(1)
    arguments.work_folder.mkdir(parents=True, exist_ok=True)
    stages = {"vae": _train_vae, "painter": _train_painter, "checkpoint": _write_checkpoint}
    stages[arguments.stage](arguments)


def _train_vae(arguments: argparse.Namespace) -> None:
    log = _Log(arguments.work_folder / "vae.jsonl")
    network = train_autoencoder(arguments.vae_steps, arguments.vae_learning_rate, arguments.seed, log)
    network.save_pretrained(arguments.work_folder / "vae")
    log(**judge_reconstructions(network))


def _train_painter(arguments: argparse.Namespace) -> None:
    """Train the text encoder and the transformer; at every report judge sketches of what they draw, without the VAE."""
    rank = ranks.join()
    statistics, tokenizer = Statistics.measure(), demo_tokenizer()
    plan = Plan(arguments.steps, arguments.learning_rate, arguments.seed, arguments.report_steps)
    training = PainterTraining(plan, statistics, tokenizer, arguments.work_folder / "painter.pt", rank)
    if arguments.resume:
        training.resume()
    prompts, wishes = zip(*held_out_prompts(REPORT_PROMPTS, REPORT_PROMPTS_SEED), strict=True)

    def report(painter: Painter) -> Mapping[str, float]:
        pipeline = assemble(painter, autoencoder(), tokenizer)
        tokens = paint_tokens(pipeline, prompts, 64, DEFAULT_STEPS, first_seed=0)
        return score(sketch(statistics.restore(tokens).numpy()), wishes)

    training.run(_Log(arguments.work_folder / "painter.jsonl"), report)


def _write_checkpoint(arguments: argparse.Namespace) -> None:
    """Put the newest states of both together."""
    tokenizer = demo_tokenizer()
    plan = Plan(arguments.steps, arguments.learning_rate, arguments.seed, arguments.report_steps)
    statistics = Statistics.measure()
    training = PainterTraining(plan, statistics, tokenizer, arguments.work_folder / "painter.pt", rank=0)
    training.resume()
    network = AutoencoderKLFlux2.from_pretrained(arguments.work_folder / "vae")
    statistics.store(network)
    save(assemble(training.averaged(), network, tokenizer), arguments.output)


class _Log:
    """Appends numbers to a file of JSON lines, and prints them.

    Args:
        file: Where they go.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, **numbers: float) -> None:
        line = json.dumps({key: round(float(value), 4) for key, value in numbers.items()})
        with self._file.open("a") as file:
            file.write(line + "\n")
        print(time.strftime("%H:%M:%S"), line, flush=True)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo_training", description=__doc__)
    parser.add_argument("stage", choices=("vae", "painter", "checkpoint"))
    parser.add_argument("--work-folder", type=Path, required=True, help="for logs and states")
    parser.add_argument("--output", type=Path, default=Path("workers/demo_model"), help="the checkpoint's folder")
    parser.add_argument("--resume", action="store_true", help="go on with a painter that was stopped")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vae-steps", type=int, default=9000)
    parser.add_argument("--vae-learning-rate", type=float, default=3e-3)
    parser.add_argument("--steps", type=int, default=10000, help="of the painter")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3, help="of the painter")
    parser.add_argument("--report-steps", type=int, default=200, help="of the painter, between reports")
    return parser.parse_args()


if __name__ == "__main__":
    main()
