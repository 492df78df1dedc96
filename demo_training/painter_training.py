"""The text encoder and the transformer learn to draw prompts, as latents."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedTokenizerFast

from demo_training.dataset import Statistics, draw_batch
from demo_training.flow import Painter, initialise
from demo_training.ranks import average_gradients

Log = Callable[..., None]

BATCHES = {64: 48, 96: 30, 128: 18}
"""Side in pixels to the images of a training step on each rank: about the same work each."""
SIDES = (64, 64, 96, 128)
"""Which sizes steps are of, each as likely as it is often here."""
WARM_UP = 200
"""Steps over which the learning rate rises."""
COOLING = 0.35
"""The part of the steps, the last, over which the learning rate falls along a line to 0."""
AVERAGED_STEPS = 400
"""Steps over which the weights are averaged, exponentially; the average is what is served."""


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train."""

    steps: int
    learning_rate: float
    seed: int
    report_steps: int = 200
    """Steps between two reports, each with a saved state."""


class PainterTraining:
    """A training run that can be stopped and resumed between steps.

    Args:
        plan: How long and how fast.
        statistics: By which tokens are normalised.
        tokenizer: For prompts.
        state_file: Where the run's state is kept.
        rank: Of this process. Ranks draw batches of their own, and take every step together.
    """

    def __init__(
        self,
        plan: Plan,
        statistics: Statistics,
        tokenizer: PreTrainedTokenizerFast,
        state_file: Path,
        rank: int,
    ) -> None:
        torch.manual_seed(plan.seed)
        self.plan = plan
        self.painter = Painter(tokenizer)
        initialise(self.painter)
        self.step = 0
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self._rank = rank
        self._statistics = statistics
        self._tokenizer = tokenizer
        self._state_file = state_file
        self._average = {name: value.clone() for name, value in self._trained().items()}
        matrices = [value for value in self._trained().values() if value.ndim > 1]
        vectors = [value for value in self._trained().values() if value.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.99), fused=True)

    def run(self, log: Log, report: Callable[[Painter], Mapping[str, float]]) -> Painter:
        """Train from the present step to the last; return the painter with averaged weights.

        Args:
            log: Called with numbers by name at every report, on rank 0.
            report: Measures a painter with averaged weights, on rank 0.
        """
        losses: list[float] = []
        start, cpu_start = time.monotonic() - self.seconds, time.process_time() - self.cpu_seconds
        while self.step < self.plan.steps:
            losses.append(self._train_step())
            self.seconds, self.cpu_seconds = time.monotonic() - start, time.process_time() - cpu_start
            due = self.step % self.plan.report_steps == 0 or self.step == self.plan.steps
            if due and self._rank == 0:
                self._save()
                measured = report(self.averaged())
                spent = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}
                log(step=self.step, loss=np.mean(losses), **spent, **measured)
            if due:
                losses = []
        return self.averaged()

    def averaged(self) -> Painter:
        """Return a copy of the painter that has the averaged weights."""
        painter = Painter(self._tokenizer)
        painter.load_state_dict(self.painter.state_dict())
        with torch.no_grad():
            for name, value in painter.named_parameters():
                if name in self._average:
                    value.copy_(self._average[name])
        return painter.eval()

    def resume(self) -> None:
        """Go on from the saved state, if there is one."""
        if not self._state_file.exists():
            return
        state: dict[str, Any] = torch.load(self._state_file, weights_only=True)
        self.step, self.seconds, self.cpu_seconds = state["step"], state["seconds"], state["cpu_seconds"]
        self.painter.load_state_dict(state["painter"])
        self._average = state["average"]
        self._optimizer.load_state_dict(state["optimizer"])

    def _train_step(self) -> float:
        """Run one step; return its loss on this rank. Random numbers depend on seed, step and rank alone."""
        side = SIDES[np.random.default_rng([self.plan.seed, self.step]).integers(len(SIDES))]
        numbers = np.random.default_rng([self.plan.seed, self.step, self._rank])
        generator = torch.Generator().manual_seed(int(numbers.integers(2**62)))
        batch = draw_batch(BATCHES[side], side, self._statistics, self._tokenizer, numbers)
        for group in self._optimizer.param_groups:
            group["lr"] = self.plan.learning_rate * _heat(self.step, self.plan.steps)
        # The fused attention's backward pass in bfloat16 costs more on the CPU than the rest of the step.
        with sdpa_kernel(SDPBackend.MATH), torch.autocast("cpu", torch.bfloat16):
            loss = self.painter.loss(batch, generator)
        loss.backward()  # type: ignore[no-untyped-call]
        average_gradients(self._trained().values())
        nn.utils.clip_grad_norm_(self._trained().values(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        self._update_average()
        return loss.item()

    @torch.no_grad()
    def _update_average(self) -> None:
        weight = max(1 / AVERAGED_STEPS, 1 / self.step)
        names = list(self._average)
        trained = self._trained()
        torch._foreach_lerp_([self._average[name] for name in names], [trained[name] for name in names], weight)

    def _trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that learn: all but the vision tower, which never runs."""
        skipped = ("vision_tower", "multi_modal_projector")
        return {
            name: value for name, value in self.painter.named_parameters() if not any(part in name for part in skipped)
        }

    def _save(self) -> None:
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "painter": self.painter.state_dict(),
            "average": self._average,
            "optimizer": self._optimizer.state_dict(),
        }
        unfinished = self._state_file.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(self._state_file)


def _heat(step: int, steps: int) -> float:
    """Return the factor on the learning rate: up along a line, level, down along a line."""
    return min((step + 1) / WARM_UP, 1.0, (steps - step) / (COOLING * steps))
