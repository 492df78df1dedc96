"""A tiny FLUX.2 pipeline."""

from __future__ import annotations

import math

from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2Pipeline, Flux2Transformer2DModel
from transformers import Mistral3Config, Mistral3ForConditionalGeneration, PreTrainedTokenizerFast

from workers.tiny_checkpoints.components import LATENT_CHANNELS, autoencoder, redraw_weights, scale_parameters
from workers.tiny_checkpoints.tokenizers import MISTRAL_IMAGE_TOKEN, MISTRAL_MAX_TOKENS, mistral_tokenizer

MISTRAL_HIDDEN_SIZE = 16
MISTRAL_HIDDEN_LAYERS = 30
"""As many as Flux2Pipeline needs by default: it reads the hidden states 10, 20 and 30."""

PROMPT_EMPHASIS = {
    "norm_q": 2.2,
    "norm_k": 2.2,
    "norm_added_q": 2.2,
    "norm_added_k": 2.2,
    "modulation": 3.0,
    "x_embedder": 0.25,
}
"""Factors on the transformer's parameters: sharper attention, stronger modulation, weaker noise.

A prompt acts by attention alone, where most tokens are padding. More emphasis would make the network chaotic: one rank
and two, which add in another order, must stay within 1e-4 of each other. With these they are within 2e-5.
"""


def flux2_pipeline() -> Flux2Pipeline:
    """Return the pipeline. The text encoder's 2 key-value heads let it split over 1 or 2 ranks."""
    tokenizer = mistral_tokenizer()
    return Flux2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        tokenizer=tokenizer,
        text_encoder=_text_encoder(tokenizer, seed=1),
        transformer=_transformer(seed=2),
        vae=autoencoder(AutoencoderKLFlux2, seed=3),
    )


def _transformer(seed: int) -> Flux2Transformer2DModel:
    """Return the transformer, drawn so that the prompt counts beside the noise."""
    transformer = Flux2Transformer2DModel(
        in_channels=4 * LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=2,
        num_attention_heads=4,
        attention_head_dim=16,
        axes_dims_rope=(4, 4, 4, 4),
        joint_attention_dim=3 * MISTRAL_HIDDEN_SIZE,
    )
    redraw_weights(transformer, seed)
    for part, factor in PROMPT_EMPHASIS.items():
        scale_parameters(transformer, part, factor)
    return transformer


def _text_encoder(tokenizer: PreTrainedTokenizerFast, seed: int) -> Mistral3ForConditionalGeneration:
    """Return the text encoder, its residual branches scaled by GPT-2's rule for deep networks: 1 / sqrt(branches)."""
    text_encoder = Mistral3ForConditionalGeneration(_mistral_config(tokenizer))
    redraw_weights(text_encoder, seed)
    for part in ("o_proj", "down_proj"):
        scale_parameters(text_encoder, part, 1 / math.sqrt(2 * MISTRAL_HIDDEN_LAYERS))
    return text_encoder


def _mistral_config(tokenizer: PreTrainedTokenizerFast) -> Mistral3Config:
    special_tokens = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return Mistral3Config(
        text_config={
            "model_type": "mistral",
            "vocab_size": len(tokenizer),
            "hidden_size": MISTRAL_HIDDEN_SIZE,
            "intermediate_size": 2 * MISTRAL_HIDDEN_SIZE,
            "num_hidden_layers": MISTRAL_HIDDEN_LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": MISTRAL_HIDDEN_SIZE // 4,
            "max_position_embeddings": MISTRAL_MAX_TOKENS,
            "rope_theta": 1e9,
            "sliding_window": None,
            **special_tokens,
        },
        vision_config={  # never run: prompts hold no images
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "image_size": 30,
            "patch_size": 6,
        },
        image_token_index=tokenizer.get_vocab()[MISTRAL_IMAGE_TOKEN],
        spatial_merge_size=1,
        **special_tokens,
    )
