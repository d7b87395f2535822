"""What a command line of ``vllm serve`` says is found in every spelling that vLLM takes."""

from __future__ import annotations

import shlex

import pytest

from specwatch.generate import serve_command
from specwatch.generate.serve_command import RECORD, ServeCommand


def read(line: str) -> ServeCommand:
    return serve_command.read(shlex.split(line))


@pytest.mark.parametrize(
    "start",
    [
        "vllm serve M",
        "/opt/vllm/bin/vllm serve M",
        "python3 -m vllm.entrypoints.openai.api_server --model M",
        "/opt/vllm/bin/python -m vllm.entrypoints.cli.main serve M",
        "python -m vllm serve M",
        "A=b numactl --cpunodebind 0 vllm serve M",
        "env A=b nice -n 5 vllm serve M",
    ],
)
def test_whatever_starts_the_server_is_understood(start: str) -> None:
    command = read(f"{start} --spec-tokens 3 --spec-method ngram --middleware a.B")
    assert command.speculates
    assert command.middleware == ("a.B",)
    assert not read(start).speculates


@pytest.mark.parametrize(
    "flags",
    [
        '--speculative-config \'{"method": "ngram"}\'',
        "--speculative_config={}1",
        "--specul.method ngram",
        "--speculative-config.num_speculative_tokens=3",
        "--speculative_config.x+ a,b",
        '-sc \'{"method": "ngram"}\'',
        "-sc=x",
        "-sc.method ngram",
        "--spec-method ngram",
        "--spec_model=d",
        "--spec-tok 5",
        "--speculative-model d --num-speculative-tokens 5",
        "--num_speculative_tokens=5",
    ],
)
def test_speculation_is_seen(flags: str) -> None:
    assert read(f"vllm serve M --port 80 {flags} --seed 1").speculates


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--speculative-config null",
        "--speculative-config '{}'",
        "-sc None",
        "--spec-method none",
        "--specialize-active-lora",
        "--sparse-indexer-topk-backend x",
        "--served-model-name speculative spec-tokens",
        "--seed 1 -- --spec-tokens 3",
    ],
)
def test_what_is_no_speculation_is_not_taken_for_it(flags: str) -> None:
    assert not read(f"vllm serve M {flags}").speculates


def test_the_tap_goes_inside_of_other_middleware_and_other_flags_to_the_end() -> None:
    command = read("vllm serve M --seed 1 --middleware=a.B --port 80 --middleware c.D -tp 2")
    command = command.with_middleware("x.Y").with_flag(RECORD, "summary").with_flag("--z", None)
    assert shlex.join(command.words) == (
        "vllm serve M --seed 1 --middleware x.Y --middleware=a.B --port 80 --middleware c.D -tp 2"
        " --per-request-spec-decode-metrics summary --z"
    )
    assert command.middleware == ("x.Y", "a.B", "c.D")


def test_nothing_is_added_behind_two_dashes() -> None:
    command = read("A=b vllm serve -- M").with_middleware("x.Y").with_flag("--z", None)
    assert command.argv == shlex.split("A=b vllm serve --middleware x.Y --z -- M")


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("", None),
        ("--per-request-spec-decode-metrics detailed", "detailed"),
        ("--per_request_spec_decode_metrics=summary", "summary"),
        ("--per-req none --per-request-spec summary", "summary"),
        ("--performance-mode throughput", None),
    ],
)
def test_the_level_of_records_is_the_last_one_given(flags: str, level: str | None) -> None:
    assert read(f"vllm serve M {flags}").record == level


@pytest.mark.parametrize(
    ("flags", "timings"),
    [("--enable-per-request-metrics", True), ("--enable_per", True), ("--enable-prefix", False)],
)
def test_timings_are_seen(flags: str, timings: bool) -> None:
    assert read(f"vllm serve M {flags}").timings is timings


def test_assignments_before_the_command_are_its_environment() -> None:
    command = read("A=1 B='x y=z' C= vllm serve M A=2")
    assert command.environment == {"A": "1", "B": "x y=z", "C": ""}
    assert command.words == ("vllm", "serve", "M", "A=2")
    changed = command.with_environment({"A": "3", "D": "4"})
    assert changed.argv[:5] == ["A=3", "B=x y=z", "C=", "D=4", "vllm"]


@pytest.mark.parametrize(
    ("flags", "file"),
    [("--config f.yml", "f.yml"), ("--config=f.yml", None), ("--port 80", None), ("--config", "")],
)
def test_only_the_spelling_that_vllm_reads_names_a_file(flags: str, file: str | None) -> None:
    assert read(f"vllm serve M {flags}").config_file == file


def test_a_file_says_the_same_in_its_own_way() -> None:
    content = {
        "speculative_config": {"method": "ngram"},
        "middleware": ["a.B", "c.D"],
        "enable-per-request-metrics": True,
        "per_request_spec_decode_metrics": "summary",
        "port": None,
    }
    config = serve_command.read_config(content)
    assert (config.speculates, config.timings, config.record) == (True, True, "summary")
    assert config.middleware == ("a.B", "c.D")
    off = serve_command.read_config({"spec-tokens": None, "enable-per-request-metrics": False})
    assert (off.speculates, off.timings, off.record) == (False, False, None)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("bash -c 'vllm serve M'", "bash starts vLLM here, from a script"),
        ("/bin/sh start.sh", "sh starts vLLM here"),
        ("env A=b dash -c 'exec vllm serve M'", "dash starts vLLM"),
        ("docker run --gpus all vllm/vllm-openai --model M", "docker starts vLLM in a container"),
        ("podman exec -it x vllm serve M", "podman starts vLLM in a container"),
        ("'vllm serve M'", "is one word"),
        ("numactl 'exec /opt/bin/vllm serve M'", "is one word"),
        ("vllm serve M '&&' true", "'&&' is for a shell"),
        ("vllm serve M '>' log", "'>' is for a shell"),
        ("vllm serve M '$VLLM_ARGS'", r"\$VLLM_ARGS stands for flags"),
        ("vllm serve '${MODEL}'", r"\$\{MODEL\} stands for"),
        ("vllm serve '$(cat model)'", "stands for"),
        ("vllm bench serve", "no `vllm serve`"),
        ("python -m vllm bench", "no `vllm serve`"),
        ("python -m other serve", "no `vllm serve`"),
        ("llama-server -m x", "no `vllm serve`"),
        ("A=b", "no `vllm serve`"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_the_reason(line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(line)


def test_a_value_with_a_dollar_in_it_is_no_variable() -> None:
    command = read("vllm serve M --api-key 'pa$$word' --chat-template '{{ $x }} vllm && serve'")
    assert command.words[4] == "pa$$word"
