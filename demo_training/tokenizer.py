"""The tokenizer: one token for each word of the grammar, one for the whole system message, one for every other word."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from demo_training.networks import MAX_SEQUENCE_LENGTH
from demo_training.prompts import grammar_words

SYSTEM_TOKEN = "[SYSTEM]"
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<pad>", SYSTEM_TOKEN)
ARTICLES = ("a", "an", "the")
"""Left out: they say nothing here, and the prompt's tokens are few."""

CHAT_TEMPLATE = """\
{% for message in messages -%}
{% set text = message.content | map(attribute='text') | join -%}
{% if message.role == 'system' %}[SYSTEM]{% else %}{{ text }}{% endif -%}
{% endfor %}"""
"""The system message, whatever it says, becomes one token."""


def demo_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer. Case and punctuation do not matter.

    It pads on the right: a padding token follows the prompt, so in the text encoder it can read all of it, and serves
    the transformer as one more summary. On the left it would have nothing to read.
    """
    words = [word for word in grammar_words() if word not in ARTICLES]
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[^\p{L}\p{N}]+"), " "),
            normalizers.Replace(Regex(rf"\b({'|'.join(ARTICLES)})\b"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers left it untyped
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=[SYSTEM_TOKEN],
        padding_side="right",
        truncation_side="right",
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_SEQUENCE_LENGTH,
    )


def tokenize(tokenizer: PreTrainedTokenizerFast, prompts: list[str]) -> dict[str, list[list[int]]]:
    """Return input_ids and attention_mask, (prompts, MAX_SEQUENCE_LENGTH), as the pipeline makes them, but faster."""
    encoded = tokenizer(
        [SYSTEM_TOKEN + prompt for prompt in prompts],
        padding="max_length",
        truncation=True,
        max_length=MAX_SEQUENCE_LENGTH,
    )
    return {key: encoded[key] for key in ("input_ids", "attention_mask")}
