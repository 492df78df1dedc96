"""The networks that several tiny pipelines share, and how their random weights are drawn.

The usual initial weights give grey images that no prompt changes. Here every layer keeps the scale of its input
(LeCun's rule), so that the prompt and the noise reach the pixels.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from diffusers import AutoencoderKL, AutoencoderKLFlux2
from torch import nn
from transformers import CLIPTextConfig, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

from workers.tiny_checkpoints.tokenizers import CLIP_MAX_TOKENS

LATENT_CHANNELS = 4
CLIP_HIDDEN_SIZE = 32

Network = TypeVar("Network", bound=nn.Module)
Autoencoder = TypeVar("Autoencoder", AutoencoderKL, AutoencoderKLFlux2)


def redraw_weights(network: Network, seed: int) -> Network:
    """Draw the weights of each linear layer, convolution and embedding anew; biases become 0.

    Weights are normal with variance 1 / (inputs of one output), embeddings with variance 1. Returns the network in
    evaluation mode.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Embedding):
                module.weight.normal_(generator=generator)
            elif isinstance(module, nn.Linear | nn.Conv2d):
                module.weight.normal_(std=1 / math.sqrt(module.weight[0].numel()), generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
    return network.eval()


def scale_parameters(network: nn.Module, part: str, factor: float) -> None:
    """Multiply every parameter that has `part` in its name by `factor`."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if part in name:
                parameter.mul_(factor)


def autoencoder(kind: type[Autoencoder], seed: int, **settings: float) -> Autoencoder:
    """Return a VAE of 8 pixels per latent whose decoder uses most of the range from black to white."""
    block_out_channels = (8, 16, 16, 16)
    network = kind(
        down_block_types=("DownEncoderBlock2D",) * len(block_out_channels),
        up_block_types=("UpDecoderBlock2D",) * len(block_out_channels),
        block_out_channels=block_out_channels,
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=4,
        sample_size=64,
        use_quant_conv=False,
        use_post_quant_conv=False,
        **settings,
    )
    return redraw_weights(network, seed)


def clip_config(tokenizer: CLIPTokenizer) -> CLIPTextConfig:
    """Return the configuration of a two-layer CLIP text encoder."""
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        hidden_size=CLIP_HIDDEN_SIZE,
        intermediate_size=2 * CLIP_HIDDEN_SIZE,
        projection_dim=CLIP_HIDDEN_SIZE,
        num_attention_heads=4,
        num_hidden_layers=2,
        max_position_embeddings=CLIP_MAX_TOKENS,
    )


def t5_encoder(tokenizer: T5Tokenizer, hidden_size: int, seed: int) -> T5EncoderModel:
    """Return a two-layer T5 text encoder."""
    config = T5Config(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        d_model=hidden_size,
        d_kv=8,
        d_ff=2 * hidden_size,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        is_encoder_decoder=False,
        use_cache=False,
    )
    return redraw_weights(T5EncoderModel(config), seed)
