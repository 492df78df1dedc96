"""The processes that train together, started by torchrun: one for each core, each with one thread.

On busy cores that is faster than one process with two threads, which waits for the slower core after every operator.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta

import torch
from torch import distributed

_PATIENCE = timedelta(hours=2)
"""How long a rank waits for another: the first one trains the VAE alone."""


def join() -> int:
    """Join the others; return this process's rank. Without torchrun there is one rank, 0."""
    if "RANK" not in os.environ:
        return 0
    distributed.init_process_group("gloo", timeout=_PATIENCE)
    return distributed.get_rank()


def wait() -> None:
    """Return when every rank has come this far."""
    if distributed.is_initialized():
        distributed.barrier()


def average_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Give every rank the mean of all ranks' gradients."""
    if not distributed.is_initialized():
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    for gradient, mean in zip(gradients, torch.split(flat, [gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
