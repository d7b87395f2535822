"""What to add to ``vllm serve`` follows from its version and from what it has."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

import specwatch_tap
from specwatch.generate import tap
from specwatch.vllm_cli import ServeCommand, read_command
from specwatch.vllm_cli.flags import (
    MIDDLEWARE,
    RECORD,
    SCHEDULER,
    SPECULATIVE_CONFIG,
    TIMINGS,
)

INSTALL = "pip install /srv/specwatch/tap"
SPECULATING = "vllm serve M -sc.method ngram"
SHELL_PUTS_IN = "sh -c 'vllm serve M -sc \"$SPECULATION\"'"


def read(line: str) -> ServeCommand:
    return read_command(shlex.split(line))


def advised(
    line: str | None = None, version: tap.Version | None = (0, 32), **options: Any
) -> tap.TapAdvice:
    """The advice for a command line, by default for vLLM 0.32."""
    command = None if line is None else read(line)
    return tap.advise(version, **{"environment": {}, "command": command, **options})


def added(advice: tap.TapAdvice) -> list[str]:
    return [flag.flag for flag in advice.flags]


VERSIONS = {
    "0.29.0": (0, 29),
    "v0.32.1": (0, 32),
    "0.29": (0, 29),
    "0.30.1rc2.dev9+g1a2b3c.cu128": (0, 30),
    "1.0.0": (1, 0),
    "0.1.dev1+g1a2b3c": None,
}


def test_versions_are_read() -> None:
    assert {said: tap.version_of(said) for said in VERSIONS} == VERSIONS


def test_what_is_no_version_is_refused() -> None:
    for said in ("", "b6119-cd6983d5", "latest", "29", "version 0.29"):
        with pytest.raises(ValueError, match="not a version of vLLM"):
            tap.version_of(said)


@pytest.mark.parametrize(
    ("version", "flags"),
    [
        ((0, 7), [MIDDLEWARE]),
        ((0, 24), [MIDDLEWARE]),
        ((0, 25), [MIDDLEWARE, TIMINGS]),
        ((0, 28), [MIDDLEWARE, TIMINGS]),
        ((0, 29), [MIDDLEWARE, RECORD, TIMINGS]),
        ((1, 0), [MIDDLEWARE, RECORD, TIMINGS]),
        (None, [MIDDLEWARE, RECORD, TIMINGS]),
    ],
)
@pytest.mark.parametrize("line", [None, SPECULATING])
def test_each_version_gets_what_it_knows(
    version: tuple[int, int] | None, flags: list[str], line: str | None
) -> None:
    advice = advised(line, version, timings=True)
    assert added(advice) == flags
    assert all(flag.why for flag in advice.flags)
    if line is not None:
        assert advice.command is not None
        last = [MIDDLEWARE, specwatch_tap.MIDDLEWARE]
        last += [RECORD, "summary"] * (RECORD in flags) + [TIMINGS] * (TIMINGS in flags)
        assert advice.command.words == (*read(line).words, *last)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (None, "version of vLLM is not known"),
        ((0, 28), "derived from the tokens of each streamed step"),
        ((0, 7), "made for vLLM 0.8 and later"),
        ((0, 32), "needs speculation: leave it out of a command without"),
        ((0, 24), "--enable-per-request-metrics needs vLLM 0.25"),
    ],
)
def test_the_notes_say_what_holds(version: tuple[int, int] | None, words: str) -> None:
    assert words in " ".join(advised(None, version, timings=True).notes)
    assert words not in " ".join(advised(SPECULATING, timings=True).notes)


@pytest.mark.parametrize("flags", ["", "-sc null", "-sc {}", "--spec-method=None", "-- -sc x"])
def test_a_command_without_speculation_gets_no_record_flag(flags: str) -> None:
    """vLLM would not start with it."""
    advice = advised(f"vllm serve M {flags}")
    assert added(advice) == [MIDDLEWARE]
    assert "no speculation" in " ".join(advice.notes)


@pytest.mark.parametrize("line", [SHELL_PUTS_IN, "vllm serve M -sc x", "vllm serve M --spec-to=3"])
def test_what_asks_for_speculation_in_any_way_gets_it(line: str) -> None:
    assert added(advised(line)) == [MIDDLEWARE, RECORD]


def test_speculation_in_the_file_counts() -> None:
    line = "vllm serve M --config f.yml"
    arguments = read(line).with_file(lambda _: "spec-method: ngram")
    assert added(advised(line, arguments=arguments)) == [MIDDLEWARE, RECORD]
    unread = advised(line, unread="f.yml: gone")
    assert added(unread) == [MIDDLEWARE]
    assert "f.yml: gone" in " ".join(unread.notes)


@pytest.mark.parametrize(
    "flags",
    [
        "--middleware specwatch_tap.Tap --per-request-spec-decode-metrics summary"
        " --enable-per-request-metrics",
        "--middleware=specwatch_tap.Tap --per_request_spec_decode_metrics=detailed"
        " --enable_per_request_metrics",
        "--enable-per --per-req summary --middle specwatch_tap.Tap",
    ],
)
def test_what_is_there_already_is_not_added_again(flags: str) -> None:
    advice = advised(f"{SPECULATING} {flags}", timings=True)
    assert advice.flags == ()
    assert advice.command == read(f"{SPECULATING} {flags}")


def test_what_the_file_has_is_not_added_again() -> None:
    text = f"middleware: {specwatch_tap.MIDDLEWARE}\nenable-per-request-metrics: true\n"
    line = f"{SPECULATING} --config f.yml"
    arguments = read(line).with_file(lambda _: text)
    assert added(advised(line, timings=True, arguments=arguments)) == [RECORD]


def test_advice_followed_leaves_nothing_to_add() -> None:
    once = advised(SPECULATING, timings=True, environment={"A": "b"})
    twice = advised(timings=True, environment={"A": "b"}, command=once.command)
    assert twice.flags == ()
    assert twice.command == once.command


def test_records_that_are_switched_off_are_switched_on() -> None:
    advice = advised(f"{SPECULATING} --per-request-spec-decode-metrics none")
    assert advice.command is not None
    assert advice.command.arguments.value(RECORD) == "summary"


def test_a_drop_in_replaces_the_command_and_says_why() -> None:
    line = 'CUDA_VISIBLE_DEVICES=0 /opt/vllm/bin/vllm serve M -sc \'{"a": "$b 5%"}\''
    advice = advised(line, environment={"X": "0,0.5"})
    *comments, service, devices, ours, reset, start = tap.drop_in(advice, INSTALL).splitlines()
    assert comments[0].startswith("# /etc/systemd/system/UNIT.d/50-specwatch-tap.conf")
    assert all(line.startswith("#") for line in comments)
    for text in (*(flag.why for flag in advice.flags), *advice.notes, INSTALL):
        assert any(text in line for line in comments)
    assert [service, devices, ours, reset] == [
        "[Service]",
        "Environment=CUDA_VISIBLE_DEVICES=0",
        "Environment=X=0,0.5",
        "ExecStart=",
    ]
    assert start == (
        'ExecStart=/opt/vllm/bin/vllm serve M -sc "{\\"a\\": \\"$$b 5%%\\"}"'
        " --middleware specwatch_tap.Tap --per-request-spec-decode-metrics summary"
    )


def test_a_drop_in_needs_a_command_that_systemd_can_start() -> None:
    with pytest.raises(ValueError, match="after --"):
        tap.drop_in(advised(), INSTALL)
    with pytest.raises(ValueError, match="full path"):
        tap.drop_in(advised("vllm serve M"), INSTALL)


# --- the switch

SWITCHED = 'vllm serve M --speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\''
SCHEDULED = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "num_speculative_tokens_per_batch_size": [[1, 1, 3]],
}


@pytest.mark.parametrize(
    "line",
    [
        SWITCHED,
        "vllm serve M -sc.method ngram -sc.num_speculative_tokens 3",
        "vllm serve M --spec-method ngram --spec-tokens 3",
    ],
)
def test_the_switch_needs_a_schedule_in_the_configuration(line: str) -> None:
    advice = advised(f"{line} --port 1", switch="/run/x")
    assert added(advice)[-2:] == [SCHEDULER, SPECULATIVE_CONFIG]
    assert advice.command is not None
    assert advice.command.words[:5] == ("vllm", "serve", "M", "--port", "1")
    assert json.loads(advice.command.words[-1]) == SCHEDULED
    assert advice.command.environment == {"SPECWATCH_SWITCH_DIRECTORY": "/run/x"}
    again = tap.advise((0, 32), environment={}, command=advice.command, switch="/run/x")
    assert added(again) == []


@pytest.mark.parametrize(
    ("line", "version", "why"),
    [
        (SWITCHED, (0, 23), "it needs vLLM 0.24"),
        ("vllm serve M", (0, 32), "no speculation"),
        (f"{SWITCHED} --scheduler-cls other.Scheduler", (0, 32), "other.Scheduler is another"),
        ("vllm serve M --spec-method suffix", (0, 32), "cannot change the number"),
        (f"{SWITCHED} -dp 2", (0, 32), "under data parallelism"),
        ("vllm serve M --spec-method mtp", (0, 32), "write num_speculative_tokens out"),
        (SHELL_PUTS_IN, (0, 32), "write it out"),
    ],
)
def test_why_a_server_gets_no_switch(line: str, version: tap.Version, why: str) -> None:
    advice = advised(line, version, switch="/run/x")
    assert SCHEDULER not in added(advice)
    assert advice.environment == {}
    (note,) = (note for note in advice.notes if note.startswith("No switch: "))
    assert why in note


def test_speculation_in_a_file_is_completed_there() -> None:
    command = read("vllm serve M --config /etc/vllm.yml")
    text = 'speculative-config: \'{"method": "ngram", "num_speculative_tokens": 5}\''
    advice = tap.advise(
        (0, 32),
        environment={},
        command=command,
        arguments=command.with_file(lambda _: text),
        switch="/run/x",
    )
    assert any("/etc/vllm.yml holds the speculation" in note for note in advice.notes)
    assert any("[[1, 1, 5]]" in note for note in advice.notes)


def test_a_unit_makes_the_directory_of_the_switch() -> None:
    text = tap.drop_in(advised(f"/opt/{SWITCHED}", switch="/run/vllm-switch"), INSTALL)
    assert (
        "RuntimeDirectory=vllm-switch\nRuntimeDirectoryMode=2770\nRuntimeDirectoryPreserve=yes\n"
        in text
    )
    assert "Environment=SPECWATCH_SWITCH_DIRECTORY=/run/vllm-switch\n" in text.replace('"', "")
    elsewhere = tap.drop_in(advised(f"/opt/{SWITCHED}", switch="/srv/switch"), INSTALL)
    assert "RuntimeDirectory=" not in elsewhere.replace("RuntimeDirectory does", "")


def test_without_a_command_the_schedule_is_described() -> None:
    advice = advised(None, switch="/run/x")
    assert added(advice)[-1] == SCHEDULER
    assert any('"num_speculative_tokens_per_batch_size": [[1, 1, K]]' in n for n in advice.notes)
