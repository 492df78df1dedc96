"""The demo model's tokenizer."""

from __future__ import annotations

import pytest
from diffusers.pipelines.flux2.pipeline_flux2 import format_input
from transformers import PreTrainedTokenizerFast

from demo_training.networks import MAX_SEQUENCE_LENGTH
from demo_training.prompts import held_out_prompts
from demo_training.tokenizer import SYSTEM_TOKEN, demo_tokenizer, tokenize


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return demo_tokenizer()


def words(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[str]:
    ids = tokenize(tokenizer, [prompt])["input_ids"][0]
    return [token for token in tokenizer.convert_ids_to_tokens(ids) if token != "<pad>"]


def test_case_punctuation_and_articles_do_not_matter(tokenizer: PreTrainedTokenizerFast) -> None:
    expected = [SYSTEM_TOKEN, "red", "circle", "top", "left"]
    assert words(tokenizer, "A RED circle; the top-left!") == expected


def test_unknown_words_are_one_token_each(tokenizer: PreTrainedTokenizerFast) -> None:
    assert words(tokenizer, "anthill red theatre") == [SYSTEM_TOKEN, "<unk>", "red", "<unk>"]


def test_empty_and_long_prompts(tokenizer: PreTrainedTokenizerFast) -> None:
    assert words(tokenizer, "") == [SYSTEM_TOKEN]
    assert len(words(tokenizer, "red " * 100)) == MAX_SEQUENCE_LENGTH


def test_the_same_tokens_as_the_chat_template_makes(tokenizer: PreTrainedTokenizerFast) -> None:
    prompts = ["two small green squares on black", "a red circle, top left", ""]
    encoded = tokenizer.apply_chat_template(
        format_input(prompts),
        tokenize=True,
        return_dict=True,
        padding="max_length",
        truncation=True,
        max_length=MAX_SEQUENCE_LENGTH,
    )
    expected = tokenize(tokenizer, prompts)
    assert encoded["input_ids"] == expected["input_ids"]
    assert encoded["attention_mask"] == expected["attention_mask"]


def test_prompts_of_the_grammar_fit(tokenizer: PreTrainedTokenizerFast) -> None:
    prompts = [prompt for prompt, _ in held_out_prompts(300, seed=0)]
    assert all(mask[-1] == 0 for mask in tokenize(tokenizer, prompts)["attention_mask"])
