"""Stable Diffusion 3: two CLIP text encoders and a T5, and classifier-free guidance with a negative prompt."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import StableDiffusion3Pipeline
from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import calculate_shift

from pixelpod.v1 import group_pb2
from workers.families.base import Conditioning, Denoising, Family, count_tokens, truncation
from workers.families.schedule import Schedule, lay_out_schedule
from workers.model_file import FamilyName


class StableDiffusion3(Family):
    """Stable Diffusion 3 and 3.5."""

    name = FamilyName.SD3
    pipeline_class = StableDiffusion3Pipeline
    uses_negative_prompt = True

    @property
    def guidance_used(self) -> bool:
        """Guidance is computed here, not learned by the model."""
        return True

    def uses_guidance_pass(self, guidance_scale: float) -> bool:
        """Guidance at 1 would cancel out, and below 1 the pipeline leaves it out too."""
        return guidance_scale > 1

    @torch.no_grad()
    def encode(self, prompt: str, max_sequence_length: int) -> Conditioning:
        """See `Family.encode`. Both CLIP encoders always read 77 tokens; `max_sequence_length` is T5's."""
        pipeline = self.pipeline
        embeddings, _, pooled, _ = pipeline.encode_prompt(
            prompt=prompt,
            prompt_2=None,
            prompt_3=None,
            do_classifier_free_guidance=False,
            device=self.device,
            max_sequence_length=max_sequence_length,
        )
        encoders = (
            ("text_encoder (CLIP)", pipeline.tokenizer, pipeline.tokenizer_max_length),
            ("text_encoder_2 (CLIP)", pipeline.tokenizer_2, pipeline.tokenizer_max_length),
            ("text_encoder_3 (T5)", pipeline.tokenizer_3, max_sequence_length),
        )
        truncated = [
            sentence
            for encoder, tokenizer, limit in encoders
            for sentence in truncation(encoder, count_tokens(tokenizer, prompt), limit)
        ]
        return Conditioning(embeddings.cpu(), pooled.cpu(), tuple(truncated))

    def _prepare(
        self, batch: group_pb2.RunBatch, generators: list[torch.Generator], conditioning: Conditioning
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
        latents = self.pipeline.prepare_latents(
            batch_size=batch.batch_size,
            num_channels_latents=self.pipeline.transformer.config.in_channels,
            height=batch.height,
            width=batch.width,
            dtype=conditioning.embeddings.dtype,
            device=self.device,
            generator=generators,
        )
        return latents, {
            "encoder_hidden_states": conditioning.embeddings,
            "pooled_projections": conditioning.pooled,
        }

    def _lay_out(self, steps: int, latents: torch.Tensor) -> Schedule:
        config = self.pipeline.scheduler.config
        if not config.use_dynamic_shifting:
            return lay_out_schedule(config, steps)
        _, _, rows, columns = latents.shape
        patch = self.pipeline.patch_size
        mu = calculate_shift(
            (rows // patch) * (columns // patch),
            config.base_image_seq_len,
            config.max_image_seq_len,
            config.base_shift,
            config.max_shift,
        )
        return lay_out_schedule(config, steps, mu=mu)

    def _predict(self, denoising: Denoising, timestep: torch.Tensor) -> torch.Tensor:
        """Run the transformer once; in a guided batch on both prompts of every slot together."""
        latents = denoising.latents
        if not denoising.guided:
            return self._run_transformer(denoising, latents, timestep)
        both = self._run_transformer(denoising, torch.cat([latents, latents]), torch.cat([timestep, timestep]))
        negative, positive = both.chunk(2)
        return negative + denoising.guidance_scale * (positive - negative)

    def _unpack(self, denoising: Denoising) -> torch.Tensor:
        config: Any = self.pipeline.vae.config
        latents: torch.Tensor = denoising.latents / config.scaling_factor + config.shift_factor
        return latents
