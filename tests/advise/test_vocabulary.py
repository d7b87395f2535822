"""Tokenizers are read with the libraries of their formats."""

from __future__ import annotations

import json

import pytest

from specwatch.errors import ConfigError
from specwatch.lab.advise.files import MissingLibrary
from tests.advise.folders import WRITTEN, fast, tokenizer, vocabulary, written


def test_pieces_are_those_that_sentencepiece_lists() -> None:
    """The list in the file was written by the library itself."""
    for name in ("spm-bpe", "spm-unigram"):
        pieces = json.loads((WRITTEN / name / "pieces.json").read_text())
        model = written(name)
        assert list(model.tokens.values()) == [piece for piece, _score in pieces]
        assert model.special == {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}


TEKKEN = {
    "config": {"default_vocab_size": 1002, "default_num_special_tokens": 1000, "pattern": "x"},
    "vocab": [
        {"rank": 0, "token_bytes": "AA==", "token_str": None},
        {"rank": 1, "token_bytes": "IMSA", "token_str": "x"},
        {"rank": 2, "token_bytes": "AQ==", "token_str": "beyond default_vocab_size"},
    ],
}


def test_tekken_puts_special_tokens_first_and_writes_bytes_as_others_do() -> None:
    tekken = vocabulary(tekken_json=TEKKEN)
    assert tekken.size == 1002
    assert [tekken.tokens[number] for number in (1, 10, 999, 1000, 1001)] == [
        "<s>",
        "[IMG]",
        "<SPECIAL_999>",
        "Ā",
        "ĠÄĢ",
    ]
    listed = {**TEKKEN, "special_tokens": [{"rank": 10, "token_str": "[THINK]"}]}
    assert vocabulary(tekken_json=listed).tokens[10] == "[THINK]"


def test_a_folder_without_a_vocabulary_says_what_was_expected() -> None:
    with pytest.raises(ConfigError, match=r"model: no vocabulary; expected tokenizer\.json"):
        vocabulary(tokenizer_config_json={})


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(MissingLibrary, match=r"tokenizers.* -m pip install .*tokenizers"):
        tokenizer(fast())
