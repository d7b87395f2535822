"""Commands of llama-server without their speculation: every spelling goes, all else stays."""

from __future__ import annotations

import shlex

import pytest

from specwatch.errors import CannotStrip
from specwatch.vllm_cli import strip

SPELLINGS = {
    "a draft model": "-md D.gguf --spec-type draft-simple --spec-draft-n-max 4",
    "long names": "--spec-draft-model D.gguf --spec_type draft-simple --spec-draft-p-min 0.5",
    "older names": "--model-draft D.gguf --draft-max 16 --draft-min 2 --draft-p-min 0.7",
    "the oldest name": "-md D.gguf --draft 16",
    "a draft of a hub": "-hfd o/m:Q4_0 -ngld -1 -devd none -td 2 -ctkd q8_0",
    "n-grams": "--spec-type ngram-simple --spec-ngram-simple-size-n 12",
    "switches": "--spec-default --no-spec-draft-backend-sampling --cpu-moe-draft",
    "a forced acceptance": "--spec-synth-rates 0.9,0.5",
}


@pytest.mark.parametrize("flags", SPELLINGS.values(), ids=SPELLINGS.keys())
@pytest.mark.parametrize(
    "start",
    [
        "llama-server",
        "env A=1 nice -n 5 /opt/llama-server",
        "docker run --rm ghcr.io/ggml-org/llama.cpp:server",
    ],
)
def test_words_about_speculation_go_and_others_stay(start: str, flags: str) -> None:
    before, after = f"{start} -m T.gguf -ngl -1 --metrics", "--port 8080 -np 4 --temp -0.5"
    stripped = strip(shlex.split(f"{before} {flags} {after}"))
    assert stripped.command == tuple(shlex.split(f"{before} {after}"))
    assert stripped.removed == tuple(shlex.split(flags))


def test_a_command_without_speculation_stays() -> None:
    words = (
        "llama-server",
        "-hf",
        "o/m",
        "--device",
        "none",
        "--special",
        "--override-tensor",
        "x",
    )
    assert strip(words).command == words
    assert strip(words).removed == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("env LLAMA_ARG_SPEC_TYPE=ngram-mod llama-server -m T", "give the flag in its place"),
        ("env LLAMA_ARG_MODEL_DRAFT=D llama-server -m T", "give the flag in its place"),
        ("llama-server --fim-qwen-7b-spec", "chooses a model with its draft"),
        ("llama-server -m T '$FLAGS'", "may expand to several words"),
        ("llama-server -m T --spec-default '&&' true", "is for a shell, not for the server"),
        ("sh -c 'llama-server -m T -md D'", "no `vllm serve` or plain `llama-server`"),
    ],
)
def test_what_is_uncertain_is_refused(line: str, message: str) -> None:
    with pytest.raises(CannotStrip, match=message):
        strip(shlex.split(line))
