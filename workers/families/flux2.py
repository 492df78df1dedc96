"""FLUX.2: a Mistral text encoder behind a chat template, packed latents, guidance as an input of the transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from diffusers import Flux2Pipeline, Flux2Transformer2DModel
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu, format_input
from transformers import AutoTokenizer, Mistral3ForConditionalGeneration

from pixelpod.v1 import group_pb2
from workers.devices import Device
from workers.families.base import Conditioning, Denoising, Family, truncation
from workers.families.schedule import Schedule, lay_out_schedule
from workers.loading import load_sharded_text_encoder, load_sharded_transformer
from workers.model_file import FamilyName, ModelFile

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Flux2(Family):
    """FLUX.2 [dev]."""

    name = FamilyName.FLUX2
    pipeline_class = Flux2Pipeline

    @classmethod
    def _load_components(cls, model: ModelFile) -> dict[str, Any]:
        """Load the tokenizer alone: the checkpoint's processor adds image inputs, and would need torchvision."""
        return {"tokenizer": AutoTokenizer.from_pretrained(model.path / "tokenizer", local_files_only=True)}

    @classmethod
    def _load_sharded(cls, model: ModelFile, device: Device, mesh: DeviceMesh) -> dict[str, Any]:
        return {
            "transformer": load_sharded_transformer(Flux2Transformer2DModel, model, device, mesh),
            "text_encoder": load_sharded_text_encoder(Mistral3ForConditionalGeneration, model, mesh),
        }

    @property
    def guidance_used(self) -> bool:
        """[dev] was distilled with guidance as an input."""
        return bool(self.pipeline.transformer.config.guidance_embeds)

    @torch.no_grad()
    def encode(self, prompt: str, max_sequence_length: int) -> Conditioning:
        """See `Family.encode`. The system message takes its part of `max_sequence_length`."""
        embeddings, _ = self.pipeline.encode_prompt(
            prompt=prompt,
            device=self.device,
            max_sequence_length=max_sequence_length,
            text_encoder_out_layers=self.model.text_encoder_out_layers,
        )
        return Conditioning(embeddings.cpu(), truncated=self._truncation(prompt, max_sequence_length))

    def _truncation(self, prompt: str, max_sequence_length: int) -> tuple[str, ...]:
        """Count the prompt's own tokens, which stand between the system message and the template's closing."""
        whole, empty = self._template_tokens(prompt), self._template_tokens("")
        before = next((i for i, (one, other) in enumerate(zip(whole, empty, strict=False)) if one != other), len(empty))
        prompt_tokens = len(whole) - len(empty)
        tokens_read = min(prompt_tokens, max(0, max_sequence_length - before))
        return truncation("text_encoder (Mistral)", prompt_tokens, tokens_read)

    def _template_tokens(self, prompt: str) -> list[int]:
        conversations = format_input([prompt], self.pipeline.system_message)
        encoded = self.pipeline.tokenizer.apply_chat_template(conversations, tokenize=True, return_dict=True)
        tokens: list[int] = encoded["input_ids"][0]
        return tokens

    def _prepare(
        self, batch: group_pb2.RunBatch, generators: list[torch.Generator], conditioning: Conditioning
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
        embeddings = conditioning.embeddings
        latents, latent_ids = self.pipeline.prepare_latents(
            batch_size=batch.batch_size,
            num_latents_channels=self.pipeline.transformer.config.in_channels // 4,
            height=batch.height,
            width=batch.width,
            dtype=embeddings.dtype,
            device=self.device,
            generator=generators,
        )
        return latents, {
            "guidance": torch.full((batch.batch_size,), batch.guidance_scale, dtype=torch.float32).to(self.device),
            "encoder_hidden_states": embeddings,
            "txt_ids": self.pipeline._prepare_text_ids(embeddings).to(self.device),
            "img_ids": latent_ids,
        }

    def _lay_out(self, steps: int, latents: torch.Tensor) -> Schedule:
        mu = compute_empirical_mu(image_seq_len=latents.shape[1], num_steps=steps)
        sigmas = np.linspace(1.0, 1 / steps, steps)
        return lay_out_schedule(self.pipeline.scheduler.config, steps, sigmas=sigmas, mu=mu)

    def _predict(self, denoising: Denoising, timestep: torch.Tensor) -> torch.Tensor:
        """The transformer takes times from 1 to 0, and multiplies them by 1000 in its own type."""
        return self._run_transformer(denoising, denoising.latents, timestep.to(denoising.latents.dtype) / 1000)

    def _unpack(self, denoising: Denoising) -> torch.Tensor:
        """Undo packing, batch norm and patches.

        The pipeline scatters tokens by their ids, into a size that it reads back from the device. Tokens are in row
        order, so that a reshape does the same with a static shape.
        """
        pipeline, vae = self.pipeline, self.pipeline.vae
        latents = denoising.latents
        patch = pipeline.vae_scale_factor * 2
        rows, columns = denoising.height // patch, denoising.width // patch
        latents = latents.permute(0, 2, 1).reshape(len(latents), -1, rows, columns)
        mean = vae.bn.running_mean.view(1, -1, 1, 1).to(latents)
        deviation = torch.sqrt(vae.bn.running_var.view(1, -1, 1, 1) + vae.config.batch_norm_eps).to(latents)
        unpatched: torch.Tensor = pipeline._unpatchify_latents(latents * deviation + mean)
        return unpatched
