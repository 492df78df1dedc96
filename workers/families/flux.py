"""FLUX.1: a CLIP and a T5 text encoder, packed latents, guidance as an input of the transformer (if at all)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from pixelpod.v1 import group_pb2
from workers.devices import Device
from workers.families.base import Conditioning, Denoising, Family, count_tokens, truncation
from workers.families.schedule import Schedule, lay_out_schedule
from workers.loading import load_sharded_transformer
from workers.model_file import FamilyName, ModelFile

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Flux(Family):
    """FLUX.1 [schnell] and [dev]."""

    name = FamilyName.FLUX
    pipeline_class = FluxPipeline

    @classmethod
    def _load_sharded(cls, model: ModelFile, device: Device, mesh: DeviceMesh) -> dict[str, Any]:
        """Shard the transformer; the text encoders have no plan and lie whole on every rank."""
        return {"transformer": load_sharded_transformer(FluxTransformer2DModel, model, device, mesh)}

    @property
    def guidance_used(self) -> bool:
        """[dev] was distilled with guidance as an input, [schnell] without."""
        return bool(self.pipeline.transformer.config.guidance_embeds)

    @torch.no_grad()
    def encode(self, prompt: str, max_sequence_length: int) -> Conditioning:
        """See `Family.encode`. CLIP always reads 77 tokens; `max_sequence_length` is T5's."""
        embeddings, pooled, _ = self.pipeline.encode_prompt(
            prompt=prompt, device=self.device, max_sequence_length=max_sequence_length
        )
        clip_tokens = count_tokens(self.pipeline.tokenizer, prompt)
        t5_tokens = count_tokens(self.pipeline.tokenizer_2, prompt)
        truncated = (
            *truncation("text_encoder (CLIP)", clip_tokens, self.pipeline.tokenizer_max_length),
            *truncation("text_encoder_2 (T5)", t5_tokens, max_sequence_length),
        )
        return Conditioning(embeddings.cpu(), pooled.cpu(), truncated)

    def _prepare(
        self, batch: group_pb2.RunBatch, generators: list[torch.Generator], conditioning: Conditioning
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
        embeddings = conditioning.embeddings
        latents, image_ids = self.pipeline.prepare_latents(
            batch_size=batch.batch_size,
            num_channels_latents=self.pipeline.transformer.config.in_channels // 4,
            height=batch.height,
            width=batch.width,
            dtype=embeddings.dtype,
            device=self.device,
            generator=generators,
        )
        guidance = torch.full((batch.batch_size,), batch.guidance_scale, dtype=torch.float32).to(self.device)
        return latents, {
            "guidance": guidance if self.guidance_used else None,
            "pooled_projections": conditioning.pooled,
            "encoder_hidden_states": embeddings,
            "txt_ids": torch.zeros(embeddings.shape[1], 3).to(self.device, embeddings.dtype),
            "img_ids": image_ids,
        }

    def _lay_out(self, steps: int, latents: torch.Tensor) -> Schedule:
        config = self.pipeline.scheduler.config
        mu = calculate_shift(
            latents.shape[1], config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift
        )
        return lay_out_schedule(config, steps, sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)

    def _predict(self, denoising: Denoising, timestep: torch.Tensor) -> torch.Tensor:
        """The transformer takes times from 1 to 0, and multiplies them by 1000 in its own type."""
        return self._run_transformer(denoising, denoising.latents, timestep.to(denoising.latents.dtype) / 1000)

    def _unpack(self, denoising: Denoising) -> torch.Tensor:
        pipeline, config = self.pipeline, self.pipeline.vae.config
        latents: torch.Tensor = pipeline._unpack_latents(
            denoising.latents, denoising.height, denoising.width, pipeline.vae_scale_factor
        )
        scaled: torch.Tensor = latents / config.scaling_factor + config.shift_factor
        return scaled
