"""Two tokenizers are the same, or the first thing that differs is named with both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from specwatch.errors import ConfigError
from specwatch.lab.advise.advice import Finding, ServerKind
from specwatch.lab.advise.model_files import TokenizerFiles
from specwatch.lab.advise.vocabulary import Vocabulary, read_vocabulary
from specwatch.lab.advise.vocabulary_comparison import compare_vocabularies as compare
from tests.advise.folders import ROLES, WRITTEN, fast, tokenizer, vocabulary, written

Change = Callable[[dict[str, Any]], object]


def texts(findings: Sequence[Finding], *levels: str) -> list[str]:
    return [item.text for item in findings if not levels or item.level in levels]


def with_added(count: int, first: int = 344) -> dict[str, Any]:
    """The usual tokenizer with ``count`` more tokens."""
    document = fast()
    for number in range(first, first + count):
        document["added_tokens"].append(
            {**document["added_tokens"][0], "id": number, "content": f"<|{number}|>"}
        )
    return document


def swap_tokens(document: dict[str, Any]) -> None:
    ids = document["model"]["vocab"]
    ids["!"], ids["%"] = ids["%"], ids["!"]


def rename(document: dict[str, Any]) -> None:
    document["added_tokens"][2]["content"] = "<|eot_id|>\x1b[2J"


def reverse_merges(document: dict[str, Any]) -> None:
    document["model"]["merges"].reverse()


TOKENS: dict[str, tuple[Change, str, str]] = {
    "an added token": (
        lambda it: it.update(with_added(1)),
        "doubt",
        '1 of 345 tokens differs at id 344: target absent, draft "<|344|>"',
    ),
    "another end of text, of which a terminal reads no commands": (
        rename,
        "wrong",
        '1 of 344 tokens differs at id 342: target "<|im_end|>", draft "<|eot_id|>\\x1b[2J"',
    ),
    "the same tokens in another order": (
        swap_tokens,
        "wrong",
        '2 of 344 tokens differ, the first at id 0: target "!", draft "%"',
    ),
}


@pytest.mark.parametrize(("change", "level", "text"), TOKENS.values(), ids=TOKENS)
def test_a_token_that_differs_is_named_with_both_sides(
    change: Change, level: str, text: str
) -> None:
    document = fast()
    change(document)
    findings = compare(tokenizer(fast()), tokenizer(document, where="draft"))
    assert text in texts(findings, level)
    assert not texts(findings, "ok")
    assert "model/tokenizer.json and draft/tokenizer.json" in findings[0].source


ENCODINGS: dict[str, Change] = {
    "merges in another order": reverse_merges,
    "a merge that is missing": lambda it: it["model"]["merges"].pop(0),
    "another normalizer": lambda it: it.update(normalizer={"type": "NFKC"}),
    "no normalizer": lambda it: it.update(normalizer=None),
    "a space in front": lambda it: it["pre_tokenizer"].update(add_prefix_space=True),
}


@pytest.mark.parametrize("change", ENCODINGS.values(), ids=ENCODINGS)
def test_texts_that_are_encoded_differently_are_a_doubt(change: Change) -> None:
    document = fast()
    change(document)
    findings = compare(tokenizer(fast()), tokenizer(document))
    (text,) = texts(findings, "doubt")
    assert "texts are encoded differently, the first is" in text
    assert not texts(findings, "ok", "wrong")


def test_equal_tokenizers_are_ok_with_what_was_compared() -> None:
    (finding,) = compare(tokenizer(fast()), tokenizer(fast()), target_size=352, draft_size=352)
    assert finding.level == "ok"
    assert finding.text.startswith(
        "target and draft have the same tokens: 344 tokens with the same ids, 4 added tokens, "
    )
    assert finding.text.endswith("texts encoded alike")


def test_spellings_of_other_versions_of_the_library_are_no_difference() -> None:
    """Merges as texts or pairs, a sequence of one, another decoder, a token around."""
    document = fast()
    document["model"]["merges"] = [" ".join(merge) for merge in document["model"]["merges"]]
    document["normalizer"] = {"type": "Sequence", "normalizers": [document["normalizer"]]}
    document["decoder"] = {"type": "Fuse"}
    token = "<|endoftext|>"
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "pair": [],
        "single": [
            {"SpecialToken": {"id": token, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "special_tokens": {token: {"id": token, "ids": [340], "tokens": [token]}},
    }
    (finding,) = compare(tokenizer(fast()), tokenizer(document))
    assert finding.level == "ok"


def test_a_token_that_one_side_cuts_out_first_is_a_doubt() -> None:
    document = fast()
    mark = {**document["added_tokens"][0], "content": "!", "id": 0, "special": False}
    document["added_tokens"].append(mark)
    findings = compare(tokenizer(fast()), tokenizer(document))
    assert '"!" (id 0) is an added token of the draft only' in texts(findings, "doubt")


SPECIAL = {
    "eos_token": (
        "doubt",
        'the eos token differs: target "<|im_end|>" (id 342), draft "<|endoftext|>" (id 340)',
    ),
    "bos_token": ("doubt", 'the bos token differs: target none, draft "<|endoftext|>" (id 340)'),
    "pad_token": (
        "note",
        'the pad token differs: target "<|endoftext|>" (id 340), draft "<|im_start|>" (id 341)',
    ),
}


@pytest.mark.parametrize("role", SPECIAL)
def test_other_special_tokens_are_named_with_their_ids(role: str) -> None:
    level, text = SPECIAL[role]
    changed = {**ROLES, role: "<|im_start|>" if role == "pad_token" else "<|endoftext|>"}
    assert texts(compare(tokenizer(fast()), tokenizer(fast(), changed)), level) == [text]


def test_the_smaller_files_give_roles_templates_and_tokens() -> None:
    roles = {"eos_token": {"content": "<|im_end|>"}, "unk_token": None}
    mapped = vocabulary(tokenizer_json=fast(), special_tokens_map_json=roles)
    assert mapped.special == {"eos": "<|im_end|>"}
    target = tokenizer(fast())
    other = tokenizer(fast(), {**ROLES, "chat_template": "other"})
    assert texts(compare(target, other), "note") == ["the chat templates differ"]
    assert len(texts(compare(target, other), "ok")) == 1
    same = tokenizer(fast(), {**ROLES, "chat_template": ROLES["chat_template"] + "\n"})
    assert texts(compare(target, same), "note") == []
    decoder = {"344": {"content": "<pad>", "special": True}, "340": {"content": "<|endoftext|>"}}
    more = tokenizer(fast(), {**ROLES, "added_tokens_decoder": decoder})
    (text,) = texts(compare(target, more), "doubt")
    assert text == '1 of 345 tokens differs at id 344: target absent, draft "<pad>"'


@pytest.mark.parametrize(
    ("target", "draft", "whose"),
    [(True, False, "draft has"), (False, True, "target has"), (False, False, "and draft have")],
)
def test_missing_tokenizer_files_are_a_doubt(target: bool, draft: bool, whose: str) -> None:
    given = tokenizer(fast())
    (finding,) = compare(given if target else None, given if draft else None)
    assert finding.level == "doubt"
    assert finding.text.startswith("it is not known whether")
    assert whose in finding.text


def test_a_head_without_files_uses_the_tokens_of_its_target() -> None:
    assert compare(tokenizer(fast()), None, head=True, target_size=352, draft_size=352) == []
    (finding,) = compare(tokenizer(fast()), None, head=True, target_size=352, draft_size=320)
    assert finding.level == "doubt"
    assert "trained for" in finding.reason


SAME_TOKENS = {
    "vocab.json and added_tokens.json": ("bpe", "bpe-plain"),
    "a .gguf file whose rows are padded": ("bpe", "bpe.gguf"),
    "plain files and .gguf": ("bpe-plain", "bpe.gguf"),
    "a SentencePiece model and its fast tokenizer": ("spm-bpe", "spm-bpe-fast"),
    "a SentencePiece model and its .gguf file": ("spm-bpe", "spm.gguf"),
    "its fast tokenizer and its .gguf file": ("spm-bpe-fast", "spm.gguf"),
    "vocab.txt and the fast tokenizer": ("wordpiece", "wordpiece-plain"),
}


@pytest.mark.parametrize("names", SAME_TOKENS.values(), ids=SAME_TOKENS)
def test_the_same_tokens_in_another_format_are_the_same(names: tuple[str, str]) -> None:
    target, draft = map(written, names)
    for findings in (compare(target, draft), compare(draft, target)):
        assert texts(findings, "wrong", "doubt") == []
        assert len(texts(findings, "ok")) == 1
        assert "how text is split into tokens was not compared" in texts(findings, "note")


def test_two_sentencepiece_models_encode_texts() -> None:
    (finding,) = compare(written("spm-bpe"), written("spm-bpe"))
    assert finding.text.endswith("texts encoded alike")


def test_special_tokens_of_tiktoken_files_are_not_known_and_no_difference() -> None:
    """Llama 3 has them under the name of SentencePiece's, Qwen 1 under its own."""
    target = vocabulary(qwen_tiktoken=b"IQ== 0\nIg== 1\n")
    same = vocabulary(tokenizer_model=b"IQ== 0\nIg== 1\n")
    assert target.tokens == same.tokens == {0: "!", 1: '"'}
    draft = vocabulary("d", vocab_json={"!": 0, '"': 1}, added_tokens_json={"<|end|>": 2})
    for other in (same, draft):
        findings = compare(target, other)
        assert "the special tokens are not known from model/qwen.tiktoken" in findings[0].text
        assert not texts(findings, "ok", "wrong")
        assert not any("differ" in finding.text for finding in findings)


def test_reserved_tokens_that_differ_touch_only_texts_that_have_them() -> None:
    """As of Llama 3 and 3.1, which have the same tokens but for three reserved ones."""
    target, draft = with_added(1), with_added(1)
    draft["added_tokens"][-1]["content"] = "<|python_tag|>"
    finding = compare(tokenizer(target), tokenizer(draft))[0]
    assert finding.level == "doubt"
    assert "only if text has one of these ids" in finding.reason
    finding = compare(tokenizer(target), tokenizer(draft), server="llama.cpp")[0]
    assert finding.level == "wrong", "llama-server continues without speculation"
    ends = tokenizer(draft, {**ROLES, "eos_token": "<|python_tag|>"})
    assert compare(tokenizer(target), ends)[0].level == "wrong", "with it texts end"
    swap_tokens(draft)
    finding = compare(tokenizer(target), tokenizer(draft))[0]
    assert (finding.level, "acceptance collapses" in finding.reason) == ("wrong", True)


def test_vllm_does_not_start_with_unequal_sizes_though_the_tokens_are_equal() -> None:
    """As Qwen2.5: 0.5B to 3B have 151,936 rows, 7B and more have 152,064."""
    sizes = {"target_size": 152064, "draft_size": 151936}
    target, draft = tokenizer(fast()), tokenizer(fast())
    equal, wrong = compare(target, draft, **sizes)
    assert (wrong.level, equal.level) == ("wrong", "ok")
    assert wrong.text == "the sizes of the vocabularies differ: target 152,064, draft 151,936"
    assert "vLLM does not start" in wrong.reason
    assert "more padding" in wrong.reason
    assert "use_heterogeneous_vocab" in wrong.remedy
    taken = compare(target, draft, heterogeneous=True, **sizes)
    assert [item.level for item in taken] == ["ok", "note"]


def test_shared_tokens_are_counted_as_vllm_does() -> None:
    """By text, wherever they stand, with either sign for a space."""
    target = written("bpe")
    backwards = enumerate(reversed(target.tokens.values()))
    tokens = {number: "▁" + token[1:] if token[0] == "Ġ" else token for number, token in backwards}
    draft = replace(target, tokens=tokens | {344: "only the draft's"})
    finding = compare(target, draft, heterogeneous=True)[0]
    assert finding.level == "doubt"
    assert finding.text.startswith("target and draft share 344 tokens: 100% of the draft's")
    few = replace(target, tokens={0: "a", 1: "b"})
    assert compare(target, few, heterogeneous=True)[0].level == "wrong"


@pytest.mark.parametrize(("rows", "level"), [(128, "note"), (129, "wrong")])
def test_llama_cpp_takes_a_difference_of_up_to_128_rows(rows: int, level: str) -> None:
    target = written("bpe.gguf")
    findings = compare(target, replace(target, size=target.size + rows), server="llama.cpp")
    (sizes,) = [item for item in findings if "sizes" in item.text]
    assert sizes.level == level


NOTICED: dict[str, tuple[int, ServerKind, str]] = {
    "vLLM compares no tokens": (200, "vllm", "never their tokens"),
    "llama.cpp compares from id 5 on": (5, "llama.cpp", "continues without speculation"),
    "and not before": (4, "llama.cpp", "and not these"),
}


@pytest.mark.parametrize(("number", "server", "reason"), NOTICED.values(), ids=NOTICED)
def test_the_reason_says_whether_the_server_notices_another_token(
    number: int, server: ServerKind, reason: str
) -> None:
    target = written("bpe.gguf")
    draft = replace(target, tokens={**target.tokens, number: "other"})
    finding = compare(target, draft, server=server)[0]
    assert finding.level == "wrong"
    assert f"id {number}" in finding.text
    assert reason in finding.reason


def test_llama_cpp_does_not_see_a_token_past_the_shorter_vocabulary() -> None:
    finding = compare(tokenizer(fast()), tokenizer(with_added(1)), server="llama.cpp")[0]
    assert finding.level == "wrong"
    assert "compares only ids 5 to 343" in finding.reason
    assert "never accepted" in finding.reason


def test_llama_cpp_wants_the_same_tokens_around_a_prompt() -> None:
    target = written("spm.gguf")
    draft = replace(target, adds={"bos": False})
    finding = compare(target, draft, server="llama.cpp")[0]
    assert finding.level == "wrong"
    assert finding.text == 'the bos token put around a prompt differs: target "<s>", draft none'
    assert not texts(compare(target, draft, server="vllm"), "wrong")


def test_ids_beyond_the_embedding_are_a_doubt_with_the_first_of_them() -> None:
    more = tokenizer(with_added(3))
    findings = compare(more, more, target_size=345, draft_size=347)
    assert texts(findings, "doubt") == [
        'the target\'s tokenizer has ids up to 346, its embedding 345 rows: id 345 is "<|345|>"'
    ]


def test_mostly_different_tokenizers_have_one_finding() -> None:
    (finding,) = compare(written("bpe"), written("unigram"))
    assert finding.text.startswith("344 of 344 tokens differ, the first at id 0")


HOSTILE: dict[str, tuple[dict[str, object], str]] = {
    "a pointer of Git LFS": ({"tokenizer_json": b"version https://git-lfs"}, "tokenizer.json: "),
    "a vocabulary of words": (
        {"tokenizer_json": {"model": {"vocab": {"a": "one"}}}},
        "tokenizer.json: cannot be read",
    ),
    "nested without end": (
        {"tokenizer_json": b'{"normalizer":' + b"[" * 100_000},
        "tokenizer.json: cannot be read",
    ),
    "an id that would take all memory": (
        {"vocab_json": {"a": 10**12}},
        "vocab.json: cannot be read (the id 1000000000000)",
    ),
    "an added token without text": (
        {"tokenizer_json": fast(), "tokenizer_config_json": {"added_tokens_decoder": {"7": 1}}},
        "tokenizer_config.json: cannot be read (the added token 7)",
    ),
    "a SentencePiece model cut short": (
        {"tokenizer_model": (WRITTEN / "spm-bpe" / "tokenizer.model").read_bytes()[:3000]},
        "tokenizer.model: cannot be read",
    ),
    "a tiktoken file of something else": (
        {"qwen_tiktoken": b"hello\n"},
        "qwen.tiktoken: cannot be read (the line 'hello')",
    ),
    "a tekken file without its sizes": ({"tekken_json": {"vocab": []}}, "tekken.json: cannot be"),
    "a vocabulary that is not text": ({"vocab_txt": b"abc\n\xff\n"}, "vocab.txt: cannot be read"),
}


@pytest.mark.parametrize(("files", "message"), HOSTILE.values(), ids=HOSTILE)
def test_what_cannot_be_read_is_named_with_its_file(files: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        vocabulary("m", **files)
    text = str(raised.value)
    assert text.startswith(f"m/{message}"), text
    assert "; expected " in text
    assert len(text) < 500


def test_a_vocabulary_of_gguf_needs_a_type_for_each_token() -> None:
    keys = {"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.token_type": [1]}
    with pytest.raises(ConfigError, match="expected one type for each token"):
        read_vocabulary(TokenizerFiles(where="m.gguf", gguf=keys))
    plain: Vocabulary = read_vocabulary(
        TokenizerFiles(where="m.gguf", gguf={"tokenizer.ggml.tokens": ["a", "b"]})
    )
    assert (plain.tokens, plain.added) == ({0: "a", 1: "b"}, None)
    keys = {
        "tokenizer.ggml.tokens": ["a", "<unused>", "[PAD2]"],
        "tokenizer.ggml.token_type": [1, 5, 5],
    }
    padded = read_vocabulary(TokenizerFiles(where="m.gguf", gguf=keys))
    assert (padded.tokens, padded.size) == ({0: "a", 1: "<unused>"}, 3)
