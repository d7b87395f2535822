"""The speculation that options ask for, put together as vLLM does."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from specwatch.domain.draft_lengths import DraftLengths
from specwatch.errors import ConfigError
from specwatch.vllm_cli import read_command, strip
from specwatch.vllm_cli.command import speculation_of

NGRAM = """'{"method": "ngram", "num_speculative_tokens": 5}'"""
OF_5 = {"method": "ngram", "num_speculative_tokens": 5}


def speculation(flags: str) -> dict[str, Any]:
    command = read_command(shlex.split(f"vllm serve M {flags}"))
    return speculation_of(command.arguments.options).config


SPELLINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "a whole configuration": (f"--speculative-config {NGRAM}", OF_5),
    "joined with =": (f"--speculative-config={NGRAM}", OF_5),
    "its short name": (f"-sc {NGRAM}", OF_5),
    "an abbreviation": (f"--specul {NGRAM}", OF_5),
    "underscores": (f"--speculative_config {NGRAM}", OF_5),
    "keys after dots": (
        "--speculative-config.method ngram --speculative_config.num_speculative_tokens=5",
        OF_5,
    ),
    "keys with dashes": (
        "-sc.method x --speculative-config.method ngram"
        " --speculative-config.num-speculative-tokens 5",
        OF_5,
    ),
    "keys after dots replace a whole configuration": (
        f"-sc {NGRAM} --speculative-config.method suffix",
        {"method": "suffix"},
    ),
    "keys nest and make lists": (
        "--speculative-config.a.b 1 --speculative-config.c+ 1,x",
        {"a": {"b": 1}, "c": [1, "x"]},
    ),
    "of two spellings with keys the last counts": (
        "--specul.model x -sc.model d -sc.k 4",
        {"model": "d", "k": 4},
    ),
    "three flags": (
        "--spec-method ngram --spec-tokens 5",
        OF_5 | {"num_speculative_tokens": "5"},
    ),
    "abbreviated flags": (
        "--spec-meth=ngram --spec-tok 5",
        OF_5 | {"num_speculative_tokens": "5"},
    ),
    "the last configuration counts": (f"-sc '{{}}' -sc {NGRAM}", OF_5),
    "flags up to 0.8.2": (
        "--speculative-model '[ngram]' --num-speculative-tokens 5",
        {"method": "ngram", "model": "[ngram]", "num_speculative_tokens": "5"},
    ),
    "none": ("--port 1 -sc null", {}),
}


@pytest.mark.parametrize(("flags", "config"), SPELLINGS.values(), ids=SPELLINGS)
def test_the_configuration_is_that_of_vllm(flags: str, config: dict[str, Any]) -> None:
    assert speculation(flags) == config


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("-sc '{method: ngram}'", "is not a JSON object"),
        ("-sc '[1]'", "is not a JSON object"),
        ("--speculative-config.a 1 --speculative-config.a.b 2", "a has a value already"),
    ],
)
def test_invalid_configurations_are_refused(flags: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        speculation(flags)


def test_variables_of_a_shell_matter_where_they_set_speculation() -> None:
    def in_a_shell(flags: str) -> dict[str, Any]:
        command = read_command(["sh", "-c", f"vllm serve M {flags}"])
        return speculation_of(command.arguments.options).config

    assert in_a_shell(f'--port "$PORT" -sc {NGRAM}') == OF_5
    with pytest.raises(ConfigError, match="--speculative-config: a shell sets its value"):
        in_a_shell('--port 1 -sc "$SPEC"')


@pytest.mark.parametrize(
    ("config", "notes", "cause"),
    [
        (
            '{"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 64, 0]]}',
            ("its drafts vary in length by a schedule over the batch size",),
            DraftLengths.SCHEDULE,
        ),
        (
            '{"method": "dspark", "enable_adaptive_verification": true}',
            ("its drafts vary in length by adaptive verification",),
            DraftLengths.ADAPTIVE_VERIFICATION,
        ),
        ('{"num_speculative_tokens_per_batch_size": [[1, 1, 4]]}', (), None),
        ('{"num_speculative_tokens_per_batch_size": [1, [[2], 3]]}', (), None),
        ('{"method": "ngram"}', (), DraftLengths.MATCHES),
    ],
)
def test_a_launch_whose_drafts_vary_in_length_is_noted(
    config: str, notes: tuple[str, ...], cause: DraftLengths | None
) -> None:
    stripped = strip(["vllm", "serve", "M", "--speculative-config", config])
    assert (stripped.command, stripped.notes) == (("vllm", "serve", "M"), notes)
    assert stripped.draft_lengths is cause
