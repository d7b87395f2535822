"""Two tokenizers are the same, or the first thing that differs is named with both sides."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from specwatch.advise.model import Finding
from specwatch.advise.model_files import TokenizerFiles
from specwatch.advise.tokenizers import compare, read
from specwatch.errors import ConfigError
from tests.advise.folders import ROLES, WRITTEN, fast, tokenizer, written

Change = Callable[[dict[str, Any]], object]


def said(findings: list[Finding], *levels: str) -> list[str]:
    return [each.text for each in findings if not levels or each.level in levels]


def added(document: dict[str, Any], number: int, content: str, **flags: bool) -> None:
    document["added_tokens"].append({**document["added_tokens"][0], "id": number,
                                     "content": content, **flags})  # fmt: skip


def swap_tokens(document: dict[str, Any]) -> None:
    vocabulary = document["model"]["vocab"]
    vocabulary["!"], vocabulary["%"] = vocabulary["%"], vocabulary["!"]


def reverse_merges(document: dict[str, Any]) -> None:
    merges = document["model"]["merges"]
    merges[3], merges[5] = merges[5], merges[3]


def rename(document: dict[str, Any]) -> None:
    for each in document["added_tokens"]:
        if each["content"] == "<|im_end|>":
            each["content"] = "<|eot_id|>\x1b[2J"


DIFFERENCES: dict[str, tuple[Change, str, str]] = {
    "one added token": (
        lambda it: added(it, 344, "<think>"),
        "doubt",
        '1 of 345 tokens differs at id 344: target absent, draft "<think>"',
    ),
    "another token, of which a terminal reads no commands": (
        rename,
        "wrong",
        '1 of 344 tokens differs at id 342: target "<|im_end|>", draft "<|eot_id|>\\x1b[2J"',
    ),
    "the same tokens in another order": (
        swap_tokens,
        "wrong",
        '2 of 344 tokens differ, the first at id 0: target "!", draft "%"',
    ),
    "merges in another order": (
        reverse_merges,
        "wrong",
        'merges differ from rank 3 on: target "{3}", draft "{5}" (84 and 84 merges)',
    ),
    "a merge that is lacking": (
        lambda it: it["model"]["merges"].pop(),
        "wrong",
        'merges differ from rank 83 on: target "{83}", draft absent (84 and 83 merges)',
    ),
    "another normalizer": (
        lambda it: it.update(normalizer={"type": "NFKC"}),
        "doubt",
        "normalizer differs: target NFC, draft NFKC",
    ),
    "no normalizer": (
        lambda it: it.update(normalizer=None),
        "doubt",
        "normalizer differs: target NFC, draft none",
    ),
    "a pre-tokenizer with a space in front": (
        lambda it: it["pre_tokenizer"].update(add_prefix_space=True),
        "doubt",
        "pre_tokenizer.add_prefix_space differs: target false, draft true",
    ),
    "a decoder, which only the target's is used of": (
        lambda it: it.update(decoder={"type": "Fuse"}),
        "note",
        "decoder differs: target ByteLevel, draft Fuse",
    ),
    "merges that are skipped where a word is a token": (
        lambda it: it["model"].update(ignore_merges=True),
        "doubt",
        "ignore_merges differs: target none, draft true",
    ),
    "a token that is cut out first on one side only": (
        lambda it: it["added_tokens"].append(
            {**it["added_tokens"][0], "content": "!", "id": 0, "special": False}
        ),
        "doubt",
        '"!" (id 0) is an added token of the draft only',
    ),
    "flags of an added token": (
        lambda it: it["added_tokens"][0].update(lstrip=True),
        "note",
        'flags of the added token "<|endoftext|>" (id 340) differ: target special, draft special'
        " lstrip",
    ),
    "another kind of model": (
        lambda it: it["model"].update(type="WordPiece"),
        "wrong",
        "the tokenizers' models differ: target BPE, draft WordPiece",
    ),
}


@pytest.mark.parametrize(("change", "level", "text"), DIFFERENCES.values(), ids=DIFFERENCES.keys())
def test_a_difference_is_named_with_both_sides(change: Change, level: str, text: str) -> None:
    document = fast()
    target = tokenizer(document)
    merges = [" ".join(merge) for merge in document["model"]["merges"]]
    change(document)
    findings = compare(target, tokenizer(document, where="draft"))
    for rank in (3, 5, 83):
        text = text.replace(f"{{{rank}}}", merges[rank])
    assert said(findings, level) == [text]
    assert len(said(findings, "ok")) == (level == "note")
    assert all("model/tokenizer.json and draft/tokenizer.json" in each.source for each in findings)


def test_equal_tokenizers_are_ok_with_what_was_compared() -> None:
    (found,) = compare(tokenizer(fast()), tokenizer(fast()), target_size=352, draft_size=352)
    assert found.level == "ok"
    assert found.text == (
        "target and draft have the same tokens: 344 tokens with the same ids, 84 merges in the same"
        " order, 4 added tokens"
    )


def test_spellings_of_other_versions_of_the_library_are_no_difference() -> None:
    """Merges as texts or pairs, a sequence of one, and fields that change nothing."""
    document = fast()
    model = document["model"]
    model["merges"] = [" ".join(merge) for merge in model["merges"]]
    del document["pre_tokenizer"]["use_regex"], document["pre_tokenizer"]["trim_offsets"]
    document["normalizer"] = {"type": "Sequence", "normalizers": [document["normalizer"]]}
    model["continuing_subword_prefix"] = ""
    (found,) = compare(tokenizer(fast()), tokenizer(document))
    assert found.level == "ok"


def test_merges_of_the_same_tokens_with_other_halves_are_a_doubt_only() -> None:
    """Converters of SentencePiece models have written either half, and text is cut alike."""
    document = fast()
    left, right = document["model"]["merges"][-1]
    whole = left + right
    document["model"]["merges"][-1] = [whole[:1], whole[1:]] if len(left) > 1 else [
        whole[:-1], whole[-1:]
    ]  # fmt: skip
    findings = compare(tokenizer(fast()), tokenizer(document))
    assert [each.level for each in findings] == ["doubt"]
    assert findings[0].text.startswith("merges differ from rank 83 on")


SPECIAL = {
    "eos_token": ("doubt", 'the eos token differs: target "<|im_end|>" (id 342), draft'
                           ' "<|endoftext|>" (id 340)'),
    "bos_token": ("doubt", 'the bos token differs: target none, draft "<|endoftext|>" (id 340)'),
    "pad_token": ("note", 'the pad token differs: target "<|endoftext|>" (id 340), draft'
                          ' "<|im_start|>" (id 341)'),
}  # fmt: skip


@pytest.mark.parametrize("role", SPECIAL)
def test_other_special_tokens_are_named_with_their_ids(role: str) -> None:
    level, text = SPECIAL[role]
    changed = {**ROLES, role: "<|im_start|>" if role == "pad_token" else "<|endoftext|>"}
    assert said(compare(tokenizer(fast()), tokenizer(fast(), changed)), level) == [text]


def test_special_tokens_are_read_from_the_map_where_the_configuration_has_none() -> None:
    files = {
        "tokenizer.json": json.dumps(fast()).encode(),
        "special_tokens_map.json": b'{"eos_token": {"content": "<|im_end|>"}, "unk_token": null}',
    }
    assert read(TokenizerFiles(where="x", files=files)).special == {"eos": "<|im_end|>"}


def test_another_chat_template_is_a_note_and_a_last_line_feed_nothing() -> None:
    target = tokenizer(fast())
    other = tokenizer(fast(), {**ROLES, "chat_template": "other"})
    findings = compare(target, other)
    assert said(findings, "note") == ["the chat templates differ"]
    assert len(said(findings, "ok")) == 1
    more = tokenizer(fast(), {**ROLES, "chat_template": ROLES["chat_template"] + "\n"})
    assert said(compare(target, more), "note") == []


def test_tokens_that_only_the_configuration_adds_count() -> None:
    """A fast tokenizer takes them from there when it is loaded."""
    decoder = {"344": {"content": "<pad>", "special": True}, "340": {"content": "<|endoftext|>"}}
    draft = tokenizer(fast(), {**ROLES, "added_tokens_decoder": decoder})
    (found, *_more) = compare(tokenizer(fast()), draft)
    assert found.text == '1 of 345 tokens differs at id 344: target absent, draft "<pad>"'


@pytest.mark.parametrize(
    ("target", "draft", "whose"),
    [
        (True, False, "draft has"),
        (False, True, "target has"),
        (False, False, "target and draft have"),
    ],
)
def test_without_files_it_cannot_be_told_and_is_never_ok(
    target: bool, draft: bool, whose: str
) -> None:
    given = tokenizer(fast())
    (found,) = compare(given if target else None, given if draft else None)
    assert found.level == "doubt"
    assert found.text.startswith("it cannot be told")
    assert whose in found.text


def test_a_head_without_files_uses_the_tokens_of_its_target() -> None:
    assert compare(tokenizer(fast()), None, head=True, target_size=352, draft_size=352) == []
    (found,) = compare(tokenizer(fast()), None, head=True, target_size=352, draft_size=320)
    assert found.level == "doubt"
    assert "trained for" in found.reason


SAME_TOKENS = {
    "vocab.json, merges.txt and added_tokens.json": ("bpe", "bpe-plain"),
    "a .gguf file whose rows are padded": ("bpe", "bpe.gguf"),
    "plain files and .gguf": ("bpe-plain", "bpe.gguf"),
    "a SentencePiece model and its fast tokenizer": ("spm-bpe", "spm-bpe-fast"),
    "a SentencePiece model and its .gguf file": ("spm-bpe", "spm.gguf"),
    "its fast tokenizer and its .gguf file": ("spm-bpe-fast", "spm.gguf"),
    "vocab.txt and the fast tokenizer": ("wordpiece", "wordpiece-plain"),
}


@pytest.mark.parametrize("names", SAME_TOKENS.values(), ids=SAME_TOKENS.keys())
def test_the_same_tokens_in_another_format_are_the_same(names: tuple[str, str]) -> None:
    target, draft = map(written, names)
    for findings in (compare(target, draft), compare(draft, target)):
        assert said(findings, "wrong", "doubt") == []
        assert len(said(findings, "ok")) == 1
        assert any("was not compared" in text for text in said(findings, "note"))


def test_pieces_are_those_that_sentencepiece_lists() -> None:
    """The list in the file was written by the library itself."""
    for kind, model in (("bpe", "BPE"), ("unigram", "Unigram")):
        name = f"spm-{kind}"
        found = written(name)
        listed = json.loads((WRITTEN / name / "pieces.json").read_text())
        assert list(found.tokens.values()) == [piece for piece, _score in listed]
        assert found.scores == pytest.approx([score for _piece, score in listed])
        assert found.model == model
        assert found.special == {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}


def test_other_scores_of_the_same_pieces_are_named() -> None:
    target = written("spm-unigram")
    scores = list(target.scores or ())
    scores[300] -= 0.5
    (found,) = compare(target, replace(target, scores=scores))
    assert found.level == "wrong"
    assert found.text.startswith("scores of pieces differ from id 300 on")


def test_other_pieces_of_a_unigram_model_differ() -> None:
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.5]]}
    other = {**model, "vocab": [["<unk>", 0.0], ["b", -1.5]]}
    target, draft = (tokenizer({"model": each}, {}) for each in (model, other))
    (found,) = compare(target, draft)
    assert found.text == '1 of 2 tokens differs at id 1: target "a", draft "b"'


def test_a_lacking_merges_file_is_a_doubt() -> None:
    plain = written("bpe-plain")
    (found, *_more) = compare(plain, replace(plain, merges=None))
    assert found.level == "doubt"
    assert "merges cannot be compared" in found.text


TEKKEN = {
    "config": {"default_vocab_size": 1002, "default_num_special_tokens": 1000, "pattern": "x"},
    "vocab": [{"rank": 0, "token_bytes": "AA==", "token_str": None},
              {"rank": 1, "token_bytes": "IMSA", "token_str": "x"},
              {"rank": 2, "token_bytes": "AQ==", "token_str": "beyond default_vocab_size"}],
}  # fmt: skip


def test_tekken_puts_special_tokens_first_and_spells_bytes_as_others_do() -> None:
    found = read(TokenizerFiles(where="m", files={"tekken.json": json.dumps(TEKKEN).encode()}))
    assert found.size == 1002
    assert [found.tokens[number] for number in (1, 10, 999, 1000, 1001)] == [
        "<s>", "[IMG]", "<SPECIAL_999>", "Ā", "ĠÄĢ"
    ]  # fmt: skip
    listed = {**TEKKEN, "special_tokens": [{"rank": 10, "token_str": "[THINK]"}]}
    other = read(TokenizerFiles(where="m", files={"tekken.json": json.dumps(listed).encode()}))
    assert other.tokens[10] == "[THINK]"


def test_special_tokens_of_tiktoken_files_cannot_be_told() -> None:
    """Llama 3 has them under the name of SentencePiece's, Qwen 1 under its own."""
    target = read(TokenizerFiles(where="m", files={"qwen.tiktoken": b"IQ== 0\nIg== 1\n"}))
    draft = read(TokenizerFiles(where="d", files={"tokenizer.model": b"IQ== 0\nIg== 1\n"}))
    assert target.tokens == draft.tokens == {0: "!", 1: '"'}
    findings = compare(target, draft)
    assert {each.level for each in findings} == {"doubt"}
    assert "special tokens cannot be told from m/qwen.tiktoken" in findings[0].text


def test_what_cannot_be_told_is_no_difference() -> None:
    """Of the target only code knows the special tokens; the draft's lie at ids of their own."""
    target = read(TokenizerFiles(where="m", files={"qwen.tiktoken": b"IQ== 0\nIg== 1\n"}))
    files = {"vocab.json": b'{"!": 0, "\\"": 1}', "added_tokens.json": b'{"<|end|>": 2}'}
    findings = compare(target, read(TokenizerFiles(where="d", files=files)))
    assert "wrong" not in {each.level for each in findings}
    assert "ok" not in {each.level for each in findings}


def test_a_folder_without_a_vocabulary_says_what_was_expected() -> None:
    with pytest.raises(ConfigError, match=r"m: no vocabulary; expected tokenizer\.json"):
        read(TokenizerFiles(where="m", files={"tokenizer_config.json": b"{}"}))


def test_the_lowest_id_that_differs_is_named() -> None:
    document = fast()
    for number, content in ((350, "<c>"), (348, "<a>"), (349, "<b>")):
        added(document, number, content)
    (found, *_more) = compare(tokenizer(document), tokenizer(fast()))
    assert found.text.startswith('3 of 347 tokens differ, the first at id 348: target "<a>"')
    assert (found.level, "all of them are added tokens" in found.reason) == ("doubt", True)
    (found, *_more) = compare(tokenizer(document), tokenizer(fast()), server="llama.cpp")
    assert "never proposes" in found.reason


def test_reserved_tokens_that_differ_touch_only_texts_that_have_them() -> None:
    """As of Llama 3 and 3.1, which have the same tokens but for three reserved ones."""
    target, draft = fast(), fast()
    added(target, 344, "<|reserved_0|>")
    added(draft, 344, "<|python_tag|>")
    (found, *_more) = compare(tokenizer(target), tokenizer(draft))
    assert found.level == "doubt"
    assert found.text.startswith("1 of 345 tokens differs at id 344")
    assert "only where text has one of these ids" in found.reason
    (found, *_more) = compare(tokenizer(target), tokenizer(draft), server="llama.cpp")
    assert found.level == "wrong", "llama-server serves on without speculation"
    (found, *_more) = compare(
        tokenizer(target), tokenizer(draft, {**ROLES, "eos_token": "<|python_tag|>"})
    )
    assert found.level == "wrong", "with it texts end"


def test_a_differing_token_that_is_none_of_the_added_is_wrong() -> None:
    target, draft = fast(), fast()
    added(target, 344, "<|reserved_0|>")
    swap_tokens(draft)
    (found, *_more) = compare(tokenizer(target), tokenizer(draft))
    assert found.level == "wrong"
    assert "acceptance collapses" in found.reason
