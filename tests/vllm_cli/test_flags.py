"""Speculation goes in every spelling of every version; nothing else does."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.errors import CannotStrip
from specwatch.vllm_cli import strip

SPELLINGS = [
    """--speculative-config '{"method": "ngram"}'""",
    """--speculative_config='{"method": "ngram"}'""",
    """--specul '{"method": "ngram"}'""",
    "-sc {}",
    "-sc={}",
    "-s {}",
    "-s={}",
    "-sc.method ngram",
    "-sc.method=ngram",
    "--speculative-config.num_speculative_tokens 3",
    "--speculative_config.x.y_z --seed",
    "--specul.method=-ngram",
    "--speculative-config.heads+ a,b",
    "--speculative-config null --spec-method ngram",
    "--spec-method ngram --spec-model d --spec-tokens 3",
    "--spec_method=ngram --spec_mod=d --spec-tok=3",
    "--spec-tokens -1",
    "--spec-model '-- draft'",
    "--spec-method ngram --spec-method ngram",
    "--per-request-spec-decode-metrics summary",
    "--per_request_spec=detailed",
    "--speculative-model [ngram] --num-speculative-tokens 5 --ngram-prompt-lookup-max 4"
    " --ngram_prompt_lookup_min=1",
    "--speculative-model d --speculative-model-quantization awq --num_spec 5",
    "--speculative-draft-tensor-parallel-size 1 -spec-draft-tp 2 -spec-draft-tp=2",
    "--speculative-max-model-len 9 --speculative-disable-by-batch-size 4",
    "--speculative-disable-mqa-scorer",
    "--disable-logprobs-during-spec-decoding",
    "--disable-logprobs-during-spec-decoding False",
    "--disable_logprobs_during_spec_decoding=True",
    "--spec-decoding-acceptance-method typical_acceptance_sampler"
    " --typical-acceptance-sampler-posterior-threshold 0.1"
    " --typical-acceptance-sampler-posterior-alpha=0.3",
]

OTHERS = [
    "--port 80",
    "--seed=1",
    "--enforce-eager",
    "-tp 2",
    "--specialize-active-lora",
    "--sparse-indexer-topk-backend auto",
    "--performance-mode balanced",
    "--num-scheduler-steps 2",
    "--disable-log-requests",
    """--diffusion-config '{"method": "ngram"}'""",
    "-dc.k 3",
    "-O3",
    "--served-model-name a b",
    "--compilation_config.level 3",
    "--speculator-of-mine x",
    "--override-generation-config.stop --spec-method",
    "--chat-template '--spec-method ngram'",
    "--config=speculation.yaml",
    "--numa-bind",
    "--no-async-scheduling",
]


def words(*texts: str) -> list[str]:
    return shlex.split(" ".join(texts))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_only_speculation_goes(spelling: str) -> None:
    before, after = "--port 80 --served-model-name a b", "--enforce-eager"
    for start in ("vllm serve M", "python -m vllm.entrypoints.openai.api_server"):
        stripped = strip(words(start, before, spelling, after))
        assert list(stripped.command) == words(start, before, after)
        assert list(stripped.removed) == words(spelling)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just(True), st.sampled_from(SPELLINGS)),
            st.tuples(st.just(False), st.sampled_from(OTHERS)),
        ),
        max_size=8,
    )
)
def test_other_words_stay_in_order(parts: list[tuple[bool, str]]) -> None:
    """And a second time there is nothing to remove."""
    stripped = strip(words("vllm serve M", *(text for _, text in parts)))
    left = words("vllm serve M", *(text for about, text in parts if not about))
    assert list(stripped.command) == left
    assert list(stripped.removed) == words(*(text for about, text in parts if about))
    again = strip(stripped.command)
    assert (again.command, again.removed) == (stripped.command, ())


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--speculative-config null",
        "--speculative-config None --spec-method '' --per-request-spec-decode-metrics none",
        """--speculative-config '{"method": "extract_hidden_states", "k": 1}'""",
        "--speculative-config.method extract_hidden_states --speculative-config.k 1",
        "--spec-method extract_hidden_states --spec-tokens 1",
        """-sc '{"method": "ngram"}' -sc.method extract_hidden_states""",
        """-sc '{"k": 1}' --spec-method extract_hidden_states""",
        "-- --spec-method ngram",
        '-sc{"method":"ngram"}',
        *OTHERS,
    ],
)
def test_a_command_without_speculation_stays(flags: str) -> None:
    line = words("vllm serve M --port 1", flags)
    stripped = strip(line)
    assert (list(stripped.command), stripped.removed, stripped.notes) == (line, (), ())


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--spec-method", "has no value"),
        ("--spec-method --port 1", "'--port' comes after it"),
        ("--spec-method -x", "'-x' comes after it"),
        ("--spec-method -- ngram", "'--' comes after it"),
        ("-sc.method", "has no value"),
        ("--speculative-d x", "short for several flags"),
        ("--spec {}", "short for several flags"),
        ("$ARGS", "write them out in its place"),
        *(
            (f"--port 1 {word} echo", f"{word!r} is for a shell")
            for word in ("&&", "||", ";", "|", "&", ">", ">>", "<", "2>&1", "&>")
        ),
    ],
)
def test_an_ambiguous_command_is_refused(flags: str, why: str) -> None:
    with pytest.raises(CannotStrip, match=re.escape(why)):
        strip([*words("vllm serve M"), *flags.split()])


def test_the_model_may_stand_behind_speculation() -> None:
    line = "vllm serve --port 1 --spec-method ngram M"
    assert strip(words(line)).command == ("vllm", "serve", "--port", "1", "M")


@pytest.mark.parametrize("flag", ["--served-model-name a", "--served_mod a", "--hf-token"])
def test_a_model_that_another_flag_would_take_is_refused(flag: str) -> None:
    with pytest.raises(CannotStrip, match="'M' would become a value of"):
        strip(words("vllm serve", flag, "--spec-method ngram M"))
    assert strip(words("vllm serve", flag, "--spec-method ngram --port 1 M")).removed
