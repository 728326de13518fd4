"""The byte-level tokenizer: every text has ids and comes back, every id of the model has a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from mmlab.gemma.tokenizer import BOS_ID, SPECIAL, byte_level_tokenizer

TOKENIZER = byte_level_tokenizer(1024)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return TOKENIZER


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<"), max_size=40))
def test_a_text_is_its_bytes_plus_three_and_comes_back(text: str) -> None:
    ids = TOKENIZER(text)["input_ids"]
    assert ids == [BOS_ID, *(byte + 3 for byte in text.encode())]
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text


def test_special_tokens_have_their_ids_and_their_attributes(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL)) == list(SPECIAL.values())
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, 1, 2)
    assert tokenizer("<start_of_image><image_soft_token>")["input_ids"] == [2, 260, 261]
    assert (tokenizer.boi_token_id, tokenizer.image_token_id, tokenizer.eoi_token_id) == (
        260,
        261,
        262,
    )
    assert tokenizer.padding_side == "left"


def test_every_id_of_the_vocabulary_is_a_token(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = tokenizer.convert_ids_to_tokens(list(range(1024)))
    assert len(set(tokens)) == 1024 and None not in tokens
    assert tokenizer.decode([1023, 75]) == "<unused1023>H"
    assert tokenizer("<unused1023>")["input_ids"][1:] == [b + 3 for b in b"<unused1023>"]
