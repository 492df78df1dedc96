"""Rectified flow as FlowMatchEulerDiscreteScheduler and Flux2Pipeline expect it: one training loss."""

from __future__ import annotations

import math

import torch
from diffusers import Flux2Pipeline, Flux2Transformer2DModel
from torch import nn
from transformers import Mistral3ForConditionalGeneration, PreTrainedTokenizerFast

from demo_training.dataset import Batch
from demo_training.networks import TEXT_OUT_LAYERS, text_encoder, transformer

SHIFTS = (0.6, 2.0)
"""Range of the schedule's shift (its mu). Flux2Pipeline uses 1.9 at 8 steps; less gives more of the small sigmas."""


class Painter(nn.Module):
    """The text encoder and the transformer, trained together.

    Args:
        tokenizer: Of the text encoder.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.text_encoder: Mistral3ForConditionalGeneration = text_encoder(tokenizer)
        self.transformer: Flux2Transformer2DModel = transformer()

    def embed(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return prompt embeddings as the pipeline makes them, (batch, MAX_SEQUENCE_LENGTH, joint_attention_dim)."""
        output = self.text_encoder.model(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True, use_cache=False
        )
        return torch.cat([output.hidden_states[layer] for layer in TEXT_OUT_LAYERS], dim=-1)

    def loss(self, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """Return the mean squared error of the velocity, noise - image, at random times."""
        noise = torch.randn(batch.tokens.shape, generator=generator)
        sigmas, times = draw_times(len(noise), generator)
        noisy = torch.lerp(batch.tokens, noise, sigmas[:, None, None])
        embeddings = self.embed(batch.input_ids, batch.attention_mask)
        velocity = self.transformer(
            hidden_states=noisy,
            encoder_hidden_states=embeddings,
            timestep=times,
            img_ids=Flux2Pipeline._prepare_latent_ids(torch.empty(1, 1, batch.rows, batch.rows))[0],
            txt_ids=Flux2Pipeline._prepare_text_ids(embeddings[:1])[0],
            return_dict=False,
        )[0]
        return nn.functional.mse_loss(velocity.float(), noise - batch.tokens)


def draw_times(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sigmas and the transformer's times for them, both (size,) from 0 to 1.

    Evenly spread, then shifted as in inference. Half of the times are rounded as bfloat16 rounds them when serving.
    """
    even = (torch.randperm(size, generator=generator) + torch.rand(size, generator=generator)) / size
    shifts = torch.empty(size).uniform_(*SHIFTS, generator=generator)
    sigmas = 1 / (1 + torch.exp(-shifts) * (1 / even.clamp(min=1e-4) - 1))
    rounded = torch.rand(size, generator=generator) < 0.5
    times = torch.where(rounded, (sigmas * 1000).bfloat16().float() / 1000, sigmas)
    return sigmas, times


def initialise(painter: Painter) -> None:
    """Draw the weights for training: layers keep the scale of their input, and blocks begin near identity.

    transformers' own initial weights, normal with 0.02, are too small for a text encoder this narrow.
    """
    language_model = painter.text_encoder.model.language_model
    network = painter.transformer
    for part in (language_model, network):
        for module in part.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=1 / math.sqrt(module.in_features))
    nn.init.normal_(language_model.embed_tokens.weight, std=0.5)
    modulations = (
        network.double_stream_modulation_img,
        network.double_stream_modulation_txt,
        network.single_stream_modulation,
        network.norm_out,
    )
    for modulation in modulations:
        nn.init.normal_(modulation.linear.weight, std=0.02)
    nn.init.zeros_(network.proj_out.weight)
