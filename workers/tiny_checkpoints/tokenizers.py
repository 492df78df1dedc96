"""Tokenizers of the three kinds that the families need, without words: a token is a byte or a character.

Every text tokenizes, as with the real ones: CLIP and Mistral know all 256 bytes, and T5 has an unknown token.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from diffusers.pipelines.flux2.system_messages import SYSTEM_MESSAGE
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import CLIPTokenizer, PreTrainedTokenizerFast, T5Tokenizer

BYTES = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))
"""The 256 characters that stand for bytes in byte-level vocabularies."""

CLIP_MAX_TOKENS = 77
T5_MAX_TOKENS = 512
MISTRAL_MAX_TOKENS = 1024

MISTRAL_IMAGE_TOKEN = "[IMG]"
MISTRAL_EXTRA_TOKENS = ("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", MISTRAL_IMAGE_TOKEN)

MISTRAL_CHAT_TEMPLATE = """\
{{ bos_token }}{% for message in messages -%}
{% set text = message.content | map(attribute='text') | join -%}
{% if message.role == 'system' %}[SYSTEM_PROMPT]{{ text }}[/SYSTEM_PROMPT]{% else %}[INST]{{ text }}[/INST]{% endif -%}
{% endfor %}"""
"""The text part of the real template: a list of messages, each with a list of text parts."""


def clip_tokenizer() -> CLIPTokenizer:
    """Return a CLIP tokenizer: each byte alone and at the end of a word, and the end token last, as in the real one."""
    tokens = [*BYTES, *(byte + "</w>" for byte in BYTES), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab=_numbered(tokens), merges=[], model_max_length=CLIP_MAX_TOKENS)


def t5_tokenizer() -> T5Tokenizer:
    """Return a T5 tokenizer that knows printable ASCII; `▁` is T5's space."""
    characters = sorted(set(string.printable) - set(string.whitespace))
    # (token, log-probability); no token competes with another, so the values do not matter.
    vocabulary = [(token, 0.0) for token in ("<pad>", "</s>", "<unk>", "▁", *characters)]
    return T5Tokenizer(vocab=vocabulary, extra_ids=0, model_max_length=T5_MAX_TOKENS)


def mistral_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with Mistral's special tokens and chat template.

    FLUX.2 puts a system message of 168 bytes before each prompt and cuts on the right. Here the message is one token,
    so that short sequences hold the prompt.
    """
    extra_tokens = [*MISTRAL_EXTRA_TOKENS, SYSTEM_MESSAGE]
    tokens = ["<unk>", "<s>", "</s>", "<pad>", *extra_tokens, *BYTES]
    tokenizer = Tokenizer(models.BPE(vocab=_numbered(tokens), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers left it untyped
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=extra_tokens,
        padding_side="left",
        chat_template=MISTRAL_CHAT_TEMPLATE,
        model_max_length=MISTRAL_MAX_TOKENS,
    )


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}
