"""What every family shares: the stages of a batch, padding, noise, the denoising step and pixels.

A batch passes `encode` (once a prompt), `start`, `step` (once a denoising step) and `decode`. Between any two of them
the caller can stop, time or hand over. All of it is built on the diffusers pipeline's own methods, and equals the
pipeline's `__call__` bit for bit on the CPU in float32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch

from pixelpod.v1 import group_pb2
from workers.devices import Device
from workers.errors import ModelRefused
from workers.families.schedule import Schedule
from workers.loading import load_pipeline, rank_device
from workers.model_file import FamilyName, ModelFile

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class NotFinite(Exception):
    """Decoded images hold values that are infinite or no numbers.

    Args:
        slots: The positions in the batch of the images at fault.
        pixels: The batch as `Family.decode` returns it, for the sake of the other images.
    """

    def __init__(self, slots: Sequence[int], pixels: np.ndarray) -> None:
        super().__init__(f"the model computed values that are not finite in slots {list(slots)} of the batch")
        self.slots = tuple(slots)
        self.pixels = pixels


@dataclass(frozen=True)
class Conditioning:
    """What the text encoders made of a prompt. In host memory: see `Conditioning.stack`."""

    embeddings: torch.Tensor
    """(1, tokens, width): one vector for each token."""
    pooled: torch.Tensor | None = None
    """(1, width): one vector for the prompt, from the CLIP encoders of the families that have them."""
    truncated: tuple[str, ...] = ()
    """One sentence for each text encoder that did not read the whole prompt. No prompt text."""

    @property
    def size_bytes(self) -> int:
        """Of the embeddings."""
        return self.embeddings.nbytes + (0 if self.pooled is None else self.pooled.nbytes)

    @staticmethod
    def stack(conditionings: Sequence[Conditioning], device: torch.device) -> Conditioning:
        """Join several to one on the device, with the first dimension their number.

        Joined in host memory, because tpu compiles one more program wherever two inputs of an operator are the same
        tensor: slots that repeat a prompt, as padding does, would make a program for each of their patterns.
        """
        pooled = [conditioning.pooled for conditioning in conditionings if conditioning.pooled is not None]
        return Conditioning(
            embeddings=torch.cat([conditioning.embeddings for conditioning in conditionings]).to(device),
            pooled=torch.cat(pooled).to(device) if pooled else None,
        )


@dataclass
class Denoising:
    """A batch on its way from noise to images. Nothing in it is shared with other batches."""

    latents: torch.Tensor
    """The images so far, (batch size, ...) in the layout of the family's transformer, on the device."""
    inputs: dict[str, torch.Tensor | None]
    """The transformer's other arguments, the same at every step, on the device."""
    guidance_scale: torch.Tensor
    """One float32 number, without dimensions, on the device."""
    guided: bool
    """Whether each step runs a guidance pass; `inputs` then holds the negative prompts before the positive ones."""
    schedule: Schedule
    """Of its steps, in host memory."""
    width: int
    """Pixels."""
    height: int
    """Pixels."""
    images: int
    """Slots asked for; the rest of the batch is padding."""
    step: int = 0
    """Steps done."""

    @property
    def steps(self) -> int:
        """Steps in all."""
        return len(self.schedule.timesteps)


class Family(ABC):
    """A loaded model of one pipeline family. One thread only: tokenizers and torch.compile hold thread-bound state."""

    name: ClassVar[FamilyName]
    """As model files call it."""
    pipeline_class: ClassVar[Any]
    """The diffusers pipeline class."""
    uses_negative_prompt: ClassVar[bool] = False
    """Whether a negative prompt can have an effect."""

    def __init__(self, pipeline: Any, model: ModelFile, device: Device) -> None:
        self.pipeline = pipeline
        self.model = model
        self.device = rank_device(device)

    @classmethod
    def load(cls, model: ModelFile, device: Device, mesh: DeviceMesh | None) -> Self:
        """Load the model on this rank.

        Args:
            model: Which weights, how they are placed and executed.
            device: Where they run.
            mesh: One dimension over all ranks, for placement tensor_parallel; None for the others.

        Raises:
            ModelRefused: if this family, or this device, can't run the model as its file asks.
        """
        device.verify(model)
        components = cls._load_components(model)
        if mesh is not None:
            components |= cls._load_sharded(model, device, mesh)
        return cls(load_pipeline(cls.pipeline_class, model, device, **components), model, device)

    @property
    @abstractmethod
    def guidance_used(self) -> bool:
        """Whether guidance_scale has an effect on this model."""

    def uses_guidance_pass(self, guidance_scale: float) -> bool:
        """Return whether each step computes a negative prompt too, at this scale; `start` then needs `negatives`."""
        return False

    @abstractmethod
    def encode(self, prompt: str, max_sequence_length: int) -> Conditioning:
        """Run the text encoders on one prompt.

        Always a batch of 1: the shape is static, and neither padding nor batch mates can change the result.

        Args:
            prompt: Any text, positive or negative.
            max_sequence_length: Tokens that the long text encoder reads.
        """

    @torch.no_grad()
    def start(
        self,
        batch: group_pb2.RunBatch,
        positives: Sequence[Conditioning],
        negatives: Sequence[Conditioning] | None = None,
    ) -> Denoising:
        """Draw the noise and lay out the schedule.

        Padding slots repeat the first slot. Noise comes from a CPU generator for each slot, so that neither the slot
        nor batch mates change an image.

        Args:
            batch: What to compute.
            positives: One for each slot of the batch.
            negatives: One for each slot, where `uses_guidance_pass` says so; else None.
        """
        padded = [*range(len(batch.slots)), *[0] * (batch.batch_size - len(batch.slots))]
        generators = [torch.Generator("cpu").manual_seed(batch.slots[slot].seed) for slot in padded]
        guided = self.uses_guidance_pass(batch.guidance_scale)
        conditionings = [positives[slot] for slot in padded]
        if guided:
            if negatives is None:
                raise ValueError(f"guidance_scale {batch.guidance_scale} needs the negative prompts' conditioning")
            conditionings = [*(negatives[slot] for slot in padded), *conditionings]
        latents, inputs = self._prepare(batch, generators, Conditioning.stack(conditionings, self.device))
        return Denoising(
            latents=latents,
            inputs=inputs,
            guidance_scale=torch.tensor(batch.guidance_scale, dtype=torch.float32).to(self.device),
            guided=guided,
            schedule=self._lay_out(batch.steps, latents),
            width=batch.width,
            height=batch.height,
            images=len(batch.slots),
        )

    @torch.no_grad()
    def step(self, denoising: Denoising) -> None:
        """Remove the noise of one step: `FlowMatchEulerDiscreteScheduler.step`, in its order of types and roundings.

        The loop is ours so that the schedule stays on the CPU: in the pipeline's own loop it lies on the device with
        the number of steps as its length, and each new number of steps compiles small operators there. Here numbers
        reach the device as fresh tensors of one shape, because the value of a plain number would be compiled in.
        """
        schedule, step = denoising.schedule, denoising.step
        timestep = torch.full((len(denoising.latents),), schedule.timesteps[step], dtype=torch.float32)
        sigma_delta = torch.tensor(schedule.sigma_deltas[step], dtype=torch.float32).to(self.device)
        velocity = self._predict(denoising, timestep)
        latents = denoising.latents.to(torch.float32) + sigma_delta * velocity
        denoising.latents = latents.to(velocity.dtype)
        denoising.step += 1

    @torch.no_grad()
    def decode(self, denoising: Denoising) -> np.ndarray:
        """Return the images as (batch size, height, width, 3) uint8, padding included, and `release` the device.

        Raises:
            NotFinite: if a value of an image asked for is infinite or no number.
        """
        decoded = self.pipeline.vae.decode(self._unpack(denoising), return_dict=False)[0].cpu()
        self.release()
        finite = decoded.isfinite().flatten(start_dim=1).all(dim=1).tolist()
        # What is not finite must not trouble the conversion; finite values stay as they are.
        unit = self.pipeline.image_processor.postprocess(decoded.nan_to_num(), output_type="np")
        pixels: np.ndarray = (unit * 255).round().astype(np.uint8)  # as diffusers makes PIL images
        bad = [slot for slot in range(denoising.images) if not finite[slot]]
        if bad:
            raise NotFinite(bad, pixels)
        return pixels

    def release(self) -> None:
        """Send offloaded models back to host memory. Call it too for a batch that is given up before `decode`."""
        self.pipeline.maybe_free_model_hooks()

    @classmethod
    def _load_components(cls, model: ModelFile) -> dict[str, Any]:
        """Return the parts of the pipeline that the family loads in its own way, by their names there."""
        return {}

    @classmethod
    def _load_sharded(cls, model: ModelFile, device: Device, mesh: DeviceMesh) -> dict[str, Any]:
        """Return this rank's share of the parts that are sharded, by their names in the pipeline."""
        raise ModelRefused(f"model {model.name}: family {cls.name} has no tensor-parallel plan; use placement single")

    @abstractmethod
    def _prepare(
        self, batch: group_pb2.RunBatch, generators: list[torch.Generator], conditioning: Conditioning
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
        """Return the noise and the transformer's constant arguments.

        Args:
            batch: What to compute.
            generators: One for each of batch_size slots.
            conditioning: Of batch_size slots; in a guided batch the negative ones of all slots come first.
        """

    @abstractmethod
    def _lay_out(self, steps: int, latents: torch.Tensor) -> Schedule:
        """Return the schedule for latents of this shape."""

    @abstractmethod
    def _predict(self, denoising: Denoising, timestep: torch.Tensor) -> torch.Tensor:
        """Return the velocity at the latents, in their shape.

        Args:
            denoising: The batch.
            timestep: (batch size,) float32, between 1000 and 0, on the CPU.
        """

    @abstractmethod
    def _unpack(self, denoising: Denoising) -> torch.Tensor:
        """Return the latents as the VAE decodes them, (batch size, channels, rows, columns)."""

    def _run_transformer(self, denoising: Denoising, latents: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.pipeline.transformer(
            hidden_states=latents, timestep=timestep.to(self.device), return_dict=False, **denoising.inputs
        )[0]
        return output


def truncation(encoder: str, prompt_tokens: int, tokens_read: int) -> tuple[str, ...]:
    """Return the sentence for `Conditioning.truncated`, or nothing when the whole prompt was read."""
    if prompt_tokens <= tokens_read:
        return ()
    return (f"{encoder} read {tokens_read} of {prompt_tokens} tokens",)


def count_tokens(tokenizer: Any, prompt: str) -> int:
    """Return the length of the whole prompt in tokens, with the special tokens around it."""
    return len(tokenizer(prompt)["input_ids"])
