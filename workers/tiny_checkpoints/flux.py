"""A tiny FLUX.1 pipeline, distilled like schnell: the guidance scale has no effect."""

from __future__ import annotations

from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextModel

from workers.tiny_checkpoints.components import (
    CLIP_HIDDEN_SIZE,
    LATENT_CHANNELS,
    autoencoder,
    clip_config,
    redraw_weights,
    t5_encoder,
)
from workers.tiny_checkpoints.tokenizers import clip_tokenizer, t5_tokenizer

T5_HIDDEN_SIZE = 32


def flux_pipeline() -> FluxPipeline:
    """Return the pipeline. Its 4 attention heads split over 1, 2 or 4 ranks."""
    clip, t5 = clip_tokenizer(), t5_tokenizer()
    transformer = FluxTransformer2DModel(
        in_channels=4 * LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=2,
        num_attention_heads=4,
        attention_head_dim=16,
        axes_dims_rope=(4, 6, 6),
        joint_attention_dim=T5_HIDDEN_SIZE,
        pooled_projection_dim=CLIP_HIDDEN_SIZE,
        guidance_embeds=False,
    )
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0, use_dynamic_shifting=False),
        tokenizer=clip,
        text_encoder=redraw_weights(CLIPTextModel(clip_config(clip)), seed=1),
        tokenizer_2=t5,
        text_encoder_2=t5_encoder(t5, T5_HIDDEN_SIZE, seed=2),
        transformer=redraw_weights(transformer, seed=3),
        vae=autoencoder(AutoencoderKL, seed=4, scaling_factor=0.3611, shift_factor=0.1159),
    )
