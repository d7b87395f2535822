"""Flags are added where they belong, and those that a command has already are seen."""

from __future__ import annotations

import shlex

import pytest

from specwatch.errors import CannotStrip
from specwatch.vllm_cli import ServeCommand, read_command, with_flags
from specwatch.vllm_cli.flags import MIDDLEWARE, RECORD, TIMINGS

TAP = (MIDDLEWARE, "x.Y")


def read(line: str) -> ServeCommand:
    return read_command(shlex.split(line))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "vllm serve M --seed 1 --middleware=a.B --port 80 --middleware c.D -tp 2",
            "vllm serve M --seed 1 --middleware x.Y --middleware=a.B --port 80 --middleware c.D"
            " -tp 2 --per-request-spec-decode-metrics summary --enable-per-request-metrics",
        ),
        (
            "uv run vllm serve -- M",
            "uv run vllm serve --middleware x.Y --per-request-spec-decode-metrics summary"
            " --enable-per-request-metrics -- M",
        ),
        (
            "sh -c 'exec vllm serve \"$MODEL\" --middle a.B'",
            'sh -c \'exec vllm serve "$MODEL" --middleware x.Y --middle a.B'
            " --per-request-spec-decode-metrics summary --enable-per-request-metrics'",
        ),
    ],
)
def test_the_tap_goes_inside_of_other_middleware_and_other_flags_to_the_end(
    before: str, after: str
) -> None:
    command = with_flags(read(before), [TAP, (RECORD, "summary"), (TIMINGS, None)])
    assert shlex.join(command.words) == shlex.join(shlex.split(after))
    middleware = [option.value for option in command.arguments.given(MIDDLEWARE)]
    assert middleware[0] == "x.Y"
    assert command.arguments.value(RECORD) == "summary"


def test_assignments_before_the_command_are_its_environment() -> None:
    command = with_flags(read("A=1 B='x y=z' C= vllm serve M A=2"), [TAP])
    assert command.environment == {"A": "1", "B": "x y=z", "C": ""}
    assert command.words == ("vllm", "serve", "M", "A=2", *TAP)


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("", None),
        ("--per_request_spec_decode_metrics=summary", "summary"),
        ("--per-req none --per-request-spec summary", "summary"),
        ("--performance-mode throughput", None),
    ],
)
def test_the_last_of_several_counts_in_every_spelling(flags: str, level: str | None) -> None:
    assert read(f"vllm serve M {flags}").arguments.value(RECORD) == level


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("docker run --gpus all vllm/vllm-openai --model M", "docker starts vLLM in a container"),
        ("podman exec -it x vllm serve M", "podman starts vLLM in a container"),
        ("vllm serve '${MODEL}'", r"\$\{MODEL\} is replaced by"),
        ("vllm serve M '$VLLM_ARGS'", r"'\$VLLM_ARGS' may expand to several words"),
    ],
)
def test_commands_that_cannot_be_changed_are_refused_with_the_reason(line: str, why: str) -> None:
    with pytest.raises(CannotStrip, match=why):
        with_flags(read(line), [TAP])


def test_a_value_with_a_dollar_in_it_is_no_variable() -> None:
    line = "vllm serve M --api-key 'pa$$word' --chat-template '{{ $x }} vllm && serve'"
    assert with_flags(read(line), []).words == tuple(shlex.split(line))
