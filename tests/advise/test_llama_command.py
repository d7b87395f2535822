"""Commands that start llama.cpp's server, in the names of today's builds and of older ones."""

from __future__ import annotations

import shlex

import pytest

from specwatch.errors import ConfigError
from specwatch.lab.advise.advice import ServerPlan
from specwatch.lab.advise.llama_command import read_llama_command, starts_llama


def plan(line: str) -> ServerPlan:
    words = shlex.split(line)
    assert starts_llama(words)
    return read_llama_command(words)


SPELLINGS = {
    "today": "llama-server -m T.gguf -md D.gguf --spec-type draft-simple --spec-draft-n-max 16",
    "today, long": "llama-server --model T.gguf --spec-draft-model D.gguf --spec-type draft-simple"
    " --spec_draft_n_max 16",
    "older": "./build/bin/llama-server -m T.gguf --model-draft D.gguf --draft-max 16",
    "oldest": "llama-server -m T.gguf -md D.gguf --draft 16",
    "a wrapper": "env GGML=1 nice -n 5 /opt/llama-server -m T.gguf -md D.gguf --draft-n 16",
    "a shell": "sh -c 'exec llama-server -m T.gguf -md D.gguf --draft-max 16'",
    "a container": "docker run ghcr.io/ggml-org/llama.cpp:server -m T.gguf -md D.gguf --draft 16",
}


@pytest.mark.parametrize("line", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_every_spelling_is_understood(line: str) -> None:
    result = plan(line)
    assert (result.server, result.target, result.draft) == ("llama.cpp", "T.gguf", "D.gguf")
    assert (result.method, result.k) == ("draft_model", 16)


def test_older_flags_are_noted_with_their_new_names() -> None:
    (most, least, kind) = plan("llama-server -m T -md D --draft-max 16 --draft-min 4").findings
    assert "now it is --spec-draft-n-max" in most.text
    assert "now it is --spec-draft-n-min" in least.text
    assert "--spec-type draft-simple" in kind.text
    assert {most.level, least.level, kind.level} == {"note"}
    now = "llama-server -m T -md D --spec-type draft-simple --spec-draft-n-max 8"
    assert plan(now).findings == ()


def test_slots_share_the_context() -> None:
    result = plan("llama-server -m T -c 32768 -np 4 -ctk q8_0")
    assert (result.context, result.slots, result.kv_dtype) == (8192, 4, "q8_0")
    auto = plan("llama-server -m T -c 0 -np -1")
    assert (auto.context, auto.slots) == (None, 1)


@pytest.mark.parametrize(
    ("flags", "method"),
    [
        ("", None),
        ("--spec-type none", None),
        ("--spec-type draft-mtp", "mtp"),
        ("-md D", "draft_model"),
        ("--spec-type draft-eagle3 -md D", "eagle3"),
        ("--spec-type ngram-simple", "ngram"),
        ("--spec-type ngram-map-k4v,draft-mtp", "ngram"),
    ],
)
def test_the_method_follows_from_the_flags(flags: str, method: str | None) -> None:
    assert plan(f"llama-server -m T {flags}").method == method


@pytest.mark.parametrize(
    ("flags", "on_cpu"),
    [
        ("", False),
        ("-ngl 99", False),
        ("-ngl all", False),
        ("-ngl auto", False),
        ("-ngl 20", True),
        ("--n-gpu-layers 0", True),
    ],
)
def test_layers_left_to_the_cpu_are_seen(flags: str, on_cpu: bool) -> None:
    assert plan(f"llama-server -m T {flags}").speculation["on_cpu"] == on_cpu


def test_drafts_accepted_at_random_are_wrong() -> None:
    result = plan("llama-server -m T --spec-type draft-mtp --spec-synth-len 3").findings
    assert [item.level for item in result] == ["wrong"]


WRONG = {
    "one word": ("--draft-max=16", "takes --draft-max and its value as two words"),
    "no value": ("--draft-max", "--draft-max has no value"),
    "no number": ("-c many", '-c "many" is not a whole number'),
    "an unknown kind": ("--spec-type magic", '--spec-type "magic" is not known'),
}


@pytest.mark.parametrize(("flags", "message"), WRONG.values(), ids=WRONG.keys())
def test_values_that_llama_server_refuses_are_refused(flags: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(f"llama-server -m T {flags}")


@pytest.mark.parametrize(
    "line", ["vllm serve llama-server", "vllm serve M", "sh -c 'vllm serve M'", "sleep 1", "sh -c"]
)
def test_other_programs_are_not_llama_cpp(line: str) -> None:
    assert not starts_llama(shlex.split(line))
