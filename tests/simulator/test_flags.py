"""Any command line that starts `vllm serve` starts the simulated vLLM, with the same meaning."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from specwatch.errors import ConfigError
from specwatch.lab.simulator.command_line import parse_flags
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch_tap.settings import SWITCH_DIRECTORY

DRAFT = '{"method":"draft_model","model":"d","num_speculative_tokens":4}'
DRAFT_OF_4 = SimulatedSpeculation(4, "draft_model", "d")
SCHEDULE = "num_speculative_tokens_per_batch_size"
SWITCH = "--scheduler-cls specwatch_tap.Scheduler"


def parsed(line: str) -> SimulatedSettings:
    return parse_flags(shlex.split(line))


@pytest.mark.parametrize("line", ["MODEL {} --port 9", "{} --model=MODEL --port=9"])
@pytest.mark.parametrize(
    "spelling",
    [
        f"-sc '{DRAFT}'",
        "--spec-model d --spec_tok=4",
        "--specul.model d --specul.num_speculative_tokens 4",
        "--speculative-model d --num-speculative-tokens 4",
    ],
)
def test_speculation_means_the_same_in_each_spelling(spelling: str, line: str) -> None:
    settings = parsed(line.format(spelling))
    assert settings.speculation == DRAFT_OF_4
    assert (settings.model, settings.port) == ("MODEL", 9)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("M", None),
        ("M --speculative-config null", None),
        (
            'M -sc \'{"method":"ngram","num_speculative_tokens":3}\'',
            SimulatedSpeculation(3, "ngram"),
        ),
        (
            "M --speculative-model '[ngram]' --num-speculative-tokens 3",
            SimulatedSpeculation(3, "ngram", "[ngram]"),
        ),
        ("M --spec-method mtp", SimulatedSpeculation(1, "mtp")),
        (
            "M --spec-method eagle3 --spec-model e --spec-tokens 3",
            SimulatedSpeculation(3, "eagle3", "e"),
        ),
        (
            f"M -sc.method ngram -sc.num_speculative_tokens 3 -sc.{SCHEDULE} '[[1,8,3],[9,64,0]]'",
            SimulatedSpeculation(3, "ngram", schedule=((1, 8, 3), (9, 64, 0))),
        ),
        (
            f"M -sc.method ngram -sc.num_speculative_tokens 3 -sc.{SCHEDULE} null",
            SimulatedSpeculation(3, "ngram"),
        ),
    ],
)
def test_speculation_of_other_kinds(line: str, expected: SimulatedSpeculation | None) -> None:
    assert parsed(line).speculation == expected


def test_flags_of_vllm_that_matter_are_taken() -> None:
    settings = parsed(
        f"Org/Model --host 0.0.0.0 --port 8123 --served-model-name one two --max-num-seqs 7"
        f" --max-model-len 32k --max_num_batched_tokens=512 --block-size 32 -dp 2"
        f" --num-gpu-blocks-override 4000 -sc '{DRAFT}' --middleware a.b --middleware c.d"
        " --per-request-spec-decode-metrics summary --enable-force-include-usage --api-key k"
        " --enable-per-request-metrics"
        " --override-generation-config '{\"temperature\": 0.6}'"
    )
    assert settings == SimulatedSettings(
        model="Org/Model",
        host="0.0.0.0",
        port=8123,
        served_model_names=("one", "two"),
        max_num_seqs=7,
        max_model_len=32000,
        max_num_batched_tokens=512,
        block_size=32,
        engines=2,
        multiprocess=True,
        num_gpu_blocks=4000,
        speculation=DRAFT_OF_4,
        middleware=("a.b", "c.d"),
        record="summary",
        force_usage=True,
        timings=True,
        api_keys=("k",),
        default_temperature=0.6,
        costs=settings.costs,
    )


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("[]", "length >= 1"),
        ("4", "Expected `array | null`, got `int`"),
        ("[[1,8]]", "Expected `array` of length 3"),
        ("[[1,8,2.5]]", "Expected `int`, got `float`"),
        ("[[0,8,4]]", r"must be positive, found [0, 8, 4]"),
        ("[[1,8,4],[12,9,4]]", "must not start after its end, found [12, 9, 4]"),
        ("[[1,8,-1]]", "must be 0 or more, found [1, 8, -1]"),
        ("[[1,8,4],[8,9,2]]", "must not overlap, found [8, 9, 2]"),
        ("[[2,8,4]]", "must start at 1, found [2, 8, 4]"),
    ],
)
def test_a_schedule_that_vllm_refuses(entries: str, message: str) -> None:
    line = f"M --spec-method ngram --spec-tokens 4 -sc '{{\"{SCHEDULE}\":{entries}}}'"
    with pytest.raises(ConfigError, match=f"^{SCHEDULE}: .*{re.escape(message)}"):
        parsed(line)


@pytest.mark.parametrize("version", ["0.8.5", "0.10.2"])
def test_older_versions_have_no_schedule(version: str) -> None:
    schedule = f'-sc \'{{"num_speculative_tokens":4,"{SCHEDULE}":[[1,8,4]]}}\''
    with pytest.raises(ConfigError, match=f"vLLM {version} has no {SCHEDULE}"):
        parsed(f"M {schedule} --simulated-engine-version {version}")


def test_adaptive_verification_is_of_the_newest_version() -> None:
    line = 'M -sc \'{"num_speculative_tokens":4,"enable_adaptive_verification":true}\''
    speculation = parsed(line).speculation
    assert speculation is not None
    assert speculation.adaptive
    with pytest.raises(ConfigError, match="has no enable_adaptive_verification: leave it out"):
        parsed(f"{line} --simulated-engine-version 0.10.2")


def test_a_schedule_under_data_parallelism_is_reported() -> None:
    schedule = f'-sc \'{{"num_speculative_tokens":4,"{SCHEDULE}":[[1,8,1]]}}\''
    with capture_logs() as logs:
        assert parsed(f"M {schedule} --data-parallel-size 2").speculation
    assert [entry["event"] for entry in logs] == ["simulated_schedule_ignored"]
    with capture_logs() as logs:
        parsed(f"M {schedule}")
    assert logs == []


@pytest.mark.parametrize(
    ("flag", "switches", "ignored"),
    [(SWITCH, True, 0), ("--scheduler-cls my.Scheduler", False, 1), ("", False, 0)],
)
def test_the_scheduler_with_the_switch_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, flag: str, switches: bool, ignored: int
) -> None:
    monkeypatch.setenv(SWITCH_DIRECTORY, "/run/vllm")
    with capture_logs() as logs:
        settings = parsed(f"M {flag}")
    assert settings.switch_directory == (Path("/run/vllm") if switches else None)
    assert [entry["flag"] for entry in logs] == ["--scheduler-cls"] * ignored
    monkeypatch.delenv(SWITCH_DIRECTORY)
    assert parsed(f"M {flag}").switch_directory is None


def test_an_environment_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH_DIRECTORY, "run")
    with pytest.raises(ConfigError, match="write the full path"):
        parsed(f"M {SWITCH}")


@pytest.mark.parametrize(("length", "tokens"), [("1M", 1024**2), ("auto", 4096), ("-1", 4096)])
def test_any_context_length_starts(length: str, tokens: int) -> None:
    settings = parsed(f"M --spec-method ngram --spec-tokens 2 --max-model-len {length}")
    assert settings.max_model_len == tokens


def test_one_api_server_for_several_engines_keeps_the_page_of_one_process() -> None:
    assert not parsed("M --data-parallel-size 2 --api-server-count 1").multiprocess
    assert parsed("M --simulated-multiprocess").multiprocess


def test_own_flags_are_taken() -> None:
    settings = parsed(
        "M --simulated-seed 7 --simulated-rate 2.5 --simulated-concurrency 3"
        " --simulated-rate-profile 0:1,60:2 --simulated-temperatures 0:0.4,0.7:0.6"
        " --simulated-prompt-tokens 50 --simulated-output-tokens 60"
        " --simulated-acceptance-scale 0.5 --simulated-drift 0:1,60:0.2"
        " --simulated-step-time 0.01 --simulated-draft-cost 0.2 --simulated-free-tokens 10"
        " --simulated-time-scale 10 --simulated-startup 1.5 --simulated-engine-version 0.10.2"
        " --simulated-kv-cache-tokens 64K"
    )
    traffic = settings.traffic
    assert (settings.seed, traffic.rate, traffic.concurrency) == (7, 2.5, 3)
    assert traffic.rate_profile.at(30.0) == 1.5
    assert traffic.temperatures == ((0.0, 0.4), (0.7, 0.6))
    assert (traffic.prompt_tokens, traffic.output_tokens) == (50.0, 60.0)
    assert settings.acceptance.scale == 0.5
    assert settings.drift.at(60.0) == 0.2
    assert settings.costs.base == pytest.approx(0.01)
    assert settings.costs.draft_base == pytest.approx(0.002)
    assert settings.costs.free_tokens == 10
    assert (settings.time_scale, settings.startup) == (10.0, 1.5)
    assert settings.engine_version == "0.10.2"
    assert settings.kv_cache_tokens == 65536


@pytest.mark.parametrize(
    ("line", "ignored"),
    [
        ("M --tensor-parallel-size 8 --port 9", ["--tensor-parallel-size"]),
        ("M -tp 8 --enforce-eager --port 9", ["-tp", "--enforce-eager"]),
        (
            "--enforce-eager M --trust-remote-code --port 9",
            ["--enforce-eager", "--trust-remote-code"],
        ),
        (
            "--dtype bfloat16 M --no-enable-log-requests --port=9",
            ["--dtype", "--no-enable-log-requests"],
        ),
        (
            "M --lora-modules a=b c=d --quantization=fp8 --port 9",
            ["--lora-modules", "--quantization"],
        ),
        ("M -O3 --compilation-config.level 3 --port 9", ["-O3", "--compilation-config.level"]),
        (
            "M --diffusion-config '{}' --specialize-active-lora --port 9",
            ["--diffusion-config", "--specialize-active-lora"],
        ),
    ],
)
def test_other_flags_of_vllm_are_ignored_and_reported(line: str, ignored: list[str]) -> None:
    with capture_logs() as logs:
        settings = parsed(line)
    assert (settings.model, settings.port) == ("M", 9)
    warned = [entry["flag"] for entry in logs if entry["event"] == "simulated_flag_ignored"]
    assert warned == ignored


def test_a_configuration_file_fills_in_what_the_command_line_leaves_open(tmp_path: Path) -> None:
    path = tmp_path / "vllm.yaml"
    path.write_text(
        "model: from-file\nport: 1234\nmax_num_seqs: 9\nserved-model-name: [a, b]\n"
        "enable-force-include-usage: true\nenforce-eager: true\n"
        "speculative-config: {method: ngram, num_speculative_tokens: 3}\n",
        encoding="utf-8",
    )
    settings = parsed(f"--config {path} --port 99")
    assert (settings.model, settings.port, settings.max_num_seqs) == ("from-file", 99, 9)
    assert settings.served == ("a", "b")
    assert settings.force_usage
    assert settings.speculation == SimulatedSpeculation(3, "ngram")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("M --port x", "--port: found 'x', expected a number"),
        ("M --port", "--port: expected a value"),
        ("M N", "unexpected argument 'N'"),
        ("M -sc '{broken'", "is not a JSON object"),
        ("M -sc '[1]'", "is not a JSON object"),
        ("M --spec-model d", "num_speculative_tokens"),
        ("M --spec-model d --spec-tokens many", "expected a whole number"),
        ("M --spec-tokens 0", "num_speculative_tokens is 0"),
        ("M --spec d", "short for several flags"),
        ("M --per-request-spec-decode-metrics summary", "needs speculation"),
        ("M --spec-tokens 3 --per-request-spec-decode-metrics all", "expected one of none"),
        ("M --simulated-temperatures warm", "--simulated-temperatures: found 'warm'"),
        ("M --simulated-engine-version 0.1", "expected one of 0.8.5"),
        ("M --config /nonexistent.yaml", "cannot be read"),
        ("M --middleware", "--middleware: expected a value"),
        ("M --simulated-step-time 0", "expected seconds above zero"),
    ],
)
def test_a_command_line_that_cannot_be_understood_says_why(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        parsed(line)
