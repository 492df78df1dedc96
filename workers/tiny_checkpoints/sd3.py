"""A tiny Stable Diffusion 3 pipeline."""

from __future__ import annotations

from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from transformers import CLIPTextModelWithProjection

from workers.tiny_checkpoints.components import (
    CLIP_HIDDEN_SIZE,
    LATENT_CHANNELS,
    autoencoder,
    clip_config,
    redraw_weights,
    t5_encoder,
)
from workers.tiny_checkpoints.tokenizers import clip_tokenizer, t5_tokenizer

T5_HIDDEN_SIZE = 2 * CLIP_HIDDEN_SIZE
"""The transformer reads T5's states, and those of both CLIP encoders side by side, in one sequence."""


def sd3_pipeline() -> StableDiffusion3Pipeline:
    """Return the pipeline, for images of up to 256 x 256 pixels."""
    clip, t5 = clip_tokenizer(), t5_tokenizer()
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=2,
        num_attention_heads=4,
        attention_head_dim=8,
        joint_attention_dim=T5_HIDDEN_SIZE,
        caption_projection_dim=32,
        pooled_projection_dim=2 * CLIP_HIDDEN_SIZE,
        pos_embed_max_size=16,
    )
    return StableDiffusion3Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        tokenizer=clip,
        text_encoder=redraw_weights(CLIPTextModelWithProjection(clip_config(clip)), seed=1),
        tokenizer_2=clip_tokenizer(),
        text_encoder_2=redraw_weights(CLIPTextModelWithProjection(clip_config(clip)), seed=2),
        tokenizer_3=t5,
        text_encoder_3=t5_encoder(t5, T5_HIDDEN_SIZE, seed=3),
        transformer=redraw_weights(transformer, seed=4),
        vae=autoencoder(AutoencoderKL, seed=5, scaling_factor=1.5305, shift_factor=0.0609),
    )
