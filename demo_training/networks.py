"""The networks of the demo model before training, with their sizes."""

from __future__ import annotations

from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2Transformer2DModel
from transformers import Mistral3Config, Mistral3ForConditionalGeneration, PreTrainedTokenizerFast

from demo_training.latents import LATENT_CHANNELS, PATCH

TEXT_WIDTH = 128
TEXT_LAYERS = 2
TEXT_OUT_LAYERS = (0, 1, 2)
"""The hidden states of the text encoder that the transformer reads: the word embeddings and both layers."""
MAX_SEQUENCE_LENGTH = 24
"""Tokens of a prompt, the system message being one. Padding is part of them."""


def autoencoder() -> AutoencoderKLFlux2:
    """Return the VAE: 8 pixels per latent, no attention; serving never runs the narrow encoder.

    Its norms have one group: with more, layers this narrow would lose the colours of flat surfaces.
    """
    channels = (8, 16, 32, 64)
    return AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * len(channels),
        up_block_types=("UpDecoderBlock2D",) * len(channels),
        block_out_channels=channels,
        decoder_block_out_channels=(16, 16, 48, 96),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=1,
        sample_size=64,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    )


def transformer() -> Flux2Transformer2DModel:
    """Return the transformer. Its 6 heads split over 2 or 3 ranks."""
    return Flux2Transformer2DModel(
        in_channels=PATCH**2 * LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=3,
        num_attention_heads=6,
        attention_head_dim=32,
        joint_attention_dim=len(TEXT_OUT_LAYERS) * TEXT_WIDTH,
        timestep_guidance_channels=64,
        mlp_ratio=2.0,
        axes_dims_rope=(2, 12, 12, 6),
        rope_theta=100,
        guidance_embeds=False,
    )


def text_encoder(tokenizer: PreTrainedTokenizerFast) -> Mistral3ForConditionalGeneration:
    """Return the text encoder. Its 2 key-value heads split over 2 ranks; its vision tower never runs."""
    special_tokens = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = Mistral3Config(
        text_config={
            "model_type": "mistral",
            "vocab_size": len(tokenizer),
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": 2 * TEXT_WIDTH,
            "num_hidden_layers": TEXT_LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": TEXT_WIDTH // 4,
            "max_position_embeddings": 512,
            "rope_theta": 1e4,
            "sliding_window": None,
            "tie_word_embeddings": True,
            **special_tokens,
        },
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "image_size": 30,
            "patch_size": 6,
        },
        image_token_index=tokenizer.unk_token_id,
        spatial_merge_size=1,
        tie_word_embeddings=True,
        **special_tokens,
    )
    return Mistral3ForConditionalGeneration(config)


def scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Return the scheduler, as FLUX.2 [dev] has it."""
    return FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True)
