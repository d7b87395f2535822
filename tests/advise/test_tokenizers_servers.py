"""What vLLM and llama.cpp do with two vocabularies decides how grave a difference is.

vLLM 0.32 was seen to refuse unequal sizes, and to take them with ``use_heterogeneous_vocab``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from specwatch.advise.model import Finding
from specwatch.advise.tokenizers import Server, Tokenizer, compare
from tests.advise.folders import fast, tokenizer, written


def levels(findings: list[Finding]) -> dict[str, str]:
    return {each.level: each.text for each in findings}


def added(count: int) -> Tokenizer:
    """The usual tokenizer with ``count`` more tokens."""
    document = fast()
    for number in range(344, 344 + count):
        document["added_tokens"].append(
            {**document["added_tokens"][0], "id": number, "content": f"<|{number}|>"}
        )
    return tokenizer(document, where="more")


def test_vllm_does_not_start_with_unequal_sizes_though_the_tokens_are_equal() -> None:
    """As Qwen2.5: 0.5B to 3B have 151,936 rows, 7B and more have 152,064."""
    target, draft = tokenizer(fast()), tokenizer(fast())
    findings = compare(target, draft, target_size=152064, draft_size=151936)
    wrong, equal = findings
    assert (wrong.level, equal.level) == ("wrong", "ok")
    assert wrong.text == "the sizes of the vocabularies differ: target 152,064, draft 151,936"
    assert "vLLM does not start" in wrong.reason
    assert "more padding" in wrong.reason
    assert "use_heterogeneous_vocab" in wrong.remedy


def test_vllm_takes_them_when_told_to_translate() -> None:
    target, draft = tokenizer(fast()), tokenizer(fast())
    findings = compare(
        target, draft, target_size=152064, draft_size=151936, heterogeneous=True
    )  # fmt: skip
    assert [each.level for each in findings] == ["ok", "note"]


def test_translated_tokens_are_counted_and_to_be_measured() -> None:
    """As vLLM counts them: by text, wherever they stand, with either sign for a space."""
    target = written("bpe")
    backwards = enumerate(reversed(target.tokens.values()))
    tokens = {number: "▁" + token[1:] if token[0] == "Ġ" else token for number, token in backwards}
    draft = replace(target, tokens=tokens | {344: "only the draft's"})
    found = compare(target, draft, heterogeneous=True)[0]
    assert found.level == "doubt"
    assert found.text.startswith("target and draft share 344 tokens: 100% of the draft's")
    assert "greedily" in found.reason
    few = replace(target, tokens={0: "a", 1: "b"})
    assert compare(target, few, heterogeneous=True)[0].level == "wrong"


def test_without_a_target_s_files_the_sizes_are_compared_all_the_same() -> None:
    found = levels(compare(None, tokenizer(fast()), target_size=352, draft_size=400))
    assert found.keys() == {"wrong", "doubt"}


@pytest.mark.parametrize(("rows", "level"), [(128, "note"), (129, "wrong")])
def test_llama_cpp_takes_a_difference_of_up_to_128_rows(rows: int, level: str) -> None:
    target = written("bpe.gguf")
    found = levels(compare(target, replace(target, size=target.size + rows), server="llama.cpp"))
    assert found.keys() == {"ok", level}
    assert "sizes" in found[level]


NOTICED: dict[str, tuple[int, Server, str]] = {
    "vLLM compares no tokens": (200, "vllm", "never their tokens"),
    "llama.cpp compares from id 5 on": (5, "llama.cpp", "serves on without speculation"),
    "and not before": (4, "llama.cpp", "does not see it"),
}


@pytest.mark.parametrize(("number", "server", "reason"), NOTICED.values(), ids=NOTICED.keys())
def test_what_the_server_makes_of_another_token_is_said(
    number: int, server: Server, reason: str
) -> None:
    target = written("bpe.gguf")
    draft = replace(target, tokens={**target.tokens, number: "other"})
    found = compare(target, draft, server=server)[0]
    assert found.level == "wrong"
    assert f"id {number}" in found.text
    assert reason in found.reason


def test_llama_cpp_does_not_see_a_token_past_the_shorter_vocabulary() -> None:
    found = compare(tokenizer(fast()), added(1), server="llama.cpp")[0]
    assert found.level == "wrong"
    assert "compares ids 5 to 343 only" in found.reason
    assert "never accepted" in found.reason


def test_llama_cpp_wants_the_same_tokens_around_a_prompt() -> None:
    target = written("spm.gguf")
    draft = replace(target, adds={"bos": False})
    (found, *_more) = compare(target, draft, server="llama.cpp")
    assert found.level == "wrong"
    assert found.text == 'the bos token put around a prompt differs: target "<s>", draft none'
    assert compare(target, draft, server="vllm")[0].level == "ok"


def test_ids_beyond_the_embedding_are_a_doubt_with_the_first_of_them() -> None:
    findings = compare(added(3), added(3), target_size=345, draft_size=347)
    doubts = [each for each in findings if each.level == "doubt"]
    assert [each.text for each in doubts] == [
        'the target\'s tokenizer has ids up to 346, its embedding 345 rows: id 345 is "<|345|>"'
    ]


def test_a_difference_in_few_tokens_hides_no_other_difference() -> None:
    target, draft = tokenizer(fast()), added(1)
    draft = replace(draft, merges=list(draft.merges or ())[:-1])
    found = levels(compare(target, draft))
    assert found.keys() == {"wrong", "doubt"}
    assert found["doubt"].startswith("1 of 345 tokens differs")
    assert "merges differ from rank 83" in found["wrong"]


def test_of_two_tokenizers_that_have_little_in_common_only_the_tokens_are_said() -> None:
    (found,) = compare(written("bpe"), written("unigram"))
    assert found.text.startswith("344 of 344 tokens differ, the first at id 0")
