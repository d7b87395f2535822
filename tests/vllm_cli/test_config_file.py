"""A file of ``--config`` that holds speculation is written out without it, as vLLM reads it."""

from __future__ import annotations

import json
import shlex

import pytest

from specwatch.errors import CannotStrip
from specwatch.vllm_cli import Stripped, strip

FILE = """
port: 80
served_model_name: [a, b]
enforce-eager: true
enable-lora: false
compilation-config: {level: 3}
speculative-config: {method: ngram, num_speculative_tokens: 3}
seed: 1
"""
WRITTEN_OUT = (
    "--port",
    "80",
    "--served_model_name",
    "a",
    "b",
    "--enforce-eager",
    "--compilation-config",
    '{"level": 3}',
    "--seed",
    "1",
)


def stripped(line: str, **files: str) -> Stripped:
    return strip(
        shlex.split(line), read_file={f"{k}.yaml": v for k, v in files.items()}.__getitem__
    )


def test_its_other_settings_become_flags_behind_the_model() -> None:
    """There the flags of the command line still win over them."""
    result = stripped("vllm serve M --seed 2 --config f.yaml --port 81", f=FILE)
    assert result.command == (
        "vllm",
        "serve",
        "M",
        *WRITTEN_OUT,
        "--seed",
        "2",
        "--port",
        "81",
    )
    assert result.removed[0] == "--speculative-config"
    assert json.loads(result.removed[1])["method"] == "ngram"
    assert "f.yaml holds speculation" in result.notes[0]


@pytest.mark.parametrize(
    "key",
    [
        "speculative_config: {method: ngram}",
        'specul: \'{"method": "ngram"}\'',
        "speculative-config.method: ngram",
        "spec-method: ngram\nspec_tok: 3",
        "num-speculative-tokens: 3",
        "speculative-disable-mqa-scorer: true",
        "per-request-spec-decode-metrics: summary",
    ],
)
def test_every_spelling_of_a_key_goes(key: str) -> None:
    assert stripped("vllm serve M --config f.yaml", f=f"port: 1\n{key}\nseed: 2").command == (
        "vllm",
        "serve",
        "M",
        "--port",
        "1",
        "--seed",
        "2",
    )


@pytest.mark.parametrize("text", ["port: 1", "speculative-config: null", "spec-method: ''", "{}"])
def test_a_file_without_speculation_stays(text: str) -> None:
    line = "vllm serve --config f.yaml --port 3"
    assert shlex.join(stripped(line, f=text).command) == line
    assert shlex.join(stripped(f"{line} --spec-method ngram", f=text).command) == line


def test_speculation_may_be_in_both() -> None:
    result = stripped("vllm serve M --spec-method ngram --config f.yaml", f="spec-tokens: 3")
    assert result.command == ("vllm", "serve", "M")
    assert result.removed == ("--spec-tokens", "3", "--spec-method", "ngram")


def test_both_together_may_be_no_acceleration() -> None:
    line = "vllm serve M --spec-method extract_hidden_states --config f.yaml"
    assert stripped(line, f="spec-tokens: 1").removed == ()


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("vllm serve --config f.yaml -tp 2", "vllm serve F --seed 1 -tp 2"),
        ("vllm serve M --config f.yaml", "vllm serve M --seed 1"),
        ("vllm serve --port 1 --model M --config f.yaml", "vllm serve --seed 1 --port 1 --model M"),
        (
            "python -m vllm.entrypoints.openai.api_server --config f.yaml --model M",
            "python -m vllm.entrypoints.openai.api_server --seed 1 --model F --model M",
        ),
    ],
)
def test_the_model_of_the_file_counts_least(line: str, command: str) -> None:
    """``vllm serve`` takes a model on its command line in one place only: before all flags."""
    text = "seed: 1\nmodel: F\nspec-method: ngram"
    assert shlex.join(stripped(line, f=text).command) == command


def test_a_file_that_names_a_file_has_no_effect_before_nor_after() -> None:
    result = stripped("vllm serve M --config f.yaml", f="config: g.yaml\nspec-method: ngram")
    assert result.command == ("vllm", "serve", "M", "--config=g.yaml")


@pytest.mark.parametrize(
    ("line", "text", "why"),
    [
        ("vllm serve M --config other.yaml", "", "cannot be read"),
        ("vllm serve M --config", "", "takes one file"),
        ("vllm serve M --config f.yaml --config f.yaml", "", "takes one file, once"),
        ("vllm serve M --config f.yaml", "a: b: c", "is not YAML"),
        ("vllm serve M --config f.yaml", "- a", "is not a mapping"),
        ("vllm serve M --config f.yaml", "1: a", "is not a mapping"),
        ("vllm serve -x 1 2 --config f.yaml", "model: F\nspec-tokens: 1", "'2' may be another"),
        (
            "python -m vllm.entrypoints.openai.api_server --config f.yaml",
            "async-scheduling: false\nspec-tokens: 3",
            "versions of vLLM differ",
        ),
        ("env -C /srv vllm serve M --config f.yaml", "port: 1", "give its full path"),
        ("env -C /srv sh -c 'vllm serve M --config f.yaml'", "port: 1", "give its full path"),
        ("sh -c 'vllm serve M --config \"$FILE\"'", "port: 1", "cannot be read from here"),
        ("docker run vllm/vllm-openai M --config f.yaml", "port: 1", "cannot be read from here"),
    ],
)
def test_a_file_that_may_hold_speculation_unseen_is_refused(line: str, text: str, why: str) -> None:
    with pytest.raises(CannotStrip, match=why):
        stripped(line, f=text)


def test_without_a_reader_no_file_is_seen() -> None:
    with pytest.raises(CannotStrip, match="cannot be read from here"):
        strip(["vllm", "serve", "M", "--config", "f.yaml"])


SPECULATOR = json.dumps({"speculators_config": {"verifier": {"name_or_path": "org/big"}}})


@pytest.mark.parametrize("model", ["/m", "/m/ --spec-tokens 3", "--port 1 --model /m"])
def test_a_model_that_brings_speculation_is_refused_with_its_verifier(model: str) -> None:
    files = {"/m/config.json": SPECULATOR}
    with pytest.raises(CannotStrip, match="serve its verifier 'org/big' instead"):
        strip(["vllm", "serve", *model.split()], read_file=files.__getitem__)


def test_a_model_that_cannot_be_looked_into_is_noted() -> None:
    def denied(path: str) -> str:
        raise PermissionError(13, "Permission denied", path)

    result = strip(["vllm", "serve", "/m", "--spec-tokens", "3"], read_file=denied)
    assert result.removed
    assert "/m/config.json: Permission denied" in result.notes[0]


@pytest.mark.parametrize("config", ["{}", '{"speculators_config": null}'])
def test_other_models_are_accepted(config: str) -> None:
    command = ("vllm", "serve", "/m", "--spec-tokens", "3")
    assert strip(command, read_file={"/m/config.json": config}.__getitem__).removed
    assert strip(("vllm", "serve", "org/m"), read_file={}.__getitem__).removed == ()
