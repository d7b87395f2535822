"""``specwatch advise``: output, exit codes, widths."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result

from specwatch.cli.advise_lines import lines
from specwatch.lab.advise.advice import Advice
from tests.advise.folders import WRITTEN, model, safetensors
from tests.advise.models import LLAMA

Run = Callable[..., Result]
SMALL = LLAMA | {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 352,
    "max_position_embeddings": 4096,
}


def folder(path: Path, **changes: Any) -> Path:
    files: dict[str, object] = {"config.json": SMALL | changes}
    for file in (WRITTEN / "bpe").iterdir():
        files[file.name] = file.read_bytes()
    return model(path, files)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A target of 32 layers and a draft of 4 with the same tokenizer."""
    return folder(tmp_path / "target", num_hidden_layers=32), folder(tmp_path / "draft")


def advised(run: Run, *arguments: object, code: int = 0) -> Advice:
    done = run("advise", "--json", *arguments)
    assert done.exit_code == code, done.output
    return msgspec.json.decode(done.stdout, type=Advice)


def findings(advice: Advice) -> str:
    return "\n".join(f"{finding.level}: {finding.text}" for finding in advice.findings)


def test_parameters_alone_are_enough(run: Run) -> None:
    advice = advised(run, "--model", "70B", "--draft", "7B", "--gpus", 4, "--gpu-memory", "80GB")
    assert (advice.method, advice.k) == ("draft_model", 5)
    assert advice.memory is not None
    assert advice.memory.target_weights == 35_000_000_000
    assert advice.draft_cost == pytest.approx(0.1)


def test_something_wrong_is_exit_code_1(run: Run) -> None:
    advice = advised(
        run, "--model", "70B", "--draft", "8B", "--gpus", 2, "--gpu-memory", "80GB", code=1
    )
    assert not advice.sound
    assert "wrong: with the draft no memory is left" in findings(advice)


def test_folders_are_read(run: Run, pair: tuple[Path, Path]) -> None:
    target, draft = pair
    advice = advised(run, "--model", target, "--draft", draft, "--k", 4)
    assert "ok: target and draft have the same tokens" in findings(advice)
    assert advice.target is not None
    assert advice.target.context == 4096
    assert advice.target.kv_per_token == 2 * 2 * 32 * 256


def test_a_command_is_read_and_options_go_before_it(run: Run, pair: tuple[Path, Path]) -> None:
    target, draft = pair
    config = json.dumps({"model": str(draft), "num_speculative_tokens": 9})
    command = ("--", "vllm", "serve", target, "-tp", 2, "--speculative-config", config)
    assert advised(run, *command).k == 9
    assert advised(run, "--k", 4, *command).k == 4
    without = advised(run, "--", "vllm", "serve", target, "--speculative-config.method=ngram")
    assert "note: k = 5 is assumed below, as none is given" in findings(without)


def test_commands_of_llama_cpp_are_read(run: Run) -> None:
    advice = advised(
        run,
        "--gpus",
        1,
        "--gpu-memory",
        "48GB",
        "--quantization",
        "Q4_K_M",
        "--",
        "llama-server",
        "-m",
        "Qwen2.5-32B.gguf",
        "-md",
        "Qwen2.5-0.5B.gguf",
        "--spec-draft-n-max",
        16,
    )
    assert (advice.method, advice.k) == ("draft_model", 16)
    assert "ok: both are of the qwen family" in findings(advice)


def test_a_name_on_the_hub_is_looked_for_in_its_cache(
    run: Run, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    unknown = advised(run, "--model", "org/model-70B", "--draft", "org/draft-7B")
    assert findings(unknown).count("its files are not here, so its size is read from its name") == 2
    kept = tmp_path / "models--org--model-70B" / "snapshots"
    kept.mkdir(parents=True)
    pair[0].rename(kept / "abc")
    # What the name says of its size is not asked any more.
    advice = advised(run, "--model", "org/model-70B", "--draft", "org/draft-7B", code=1)
    assert advice.target is not None
    assert (advice.target.name, advice.target.context) == ("org/model-70B", 4096)
    assert findings(advice).count("its files are not here") == 1


def test_a_model_of_which_the_cache_has_the_tokenizer_only(
    run: Run, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The size comes from the name, and the tokens are compared."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--org--model-70B" / "snapshots" / "abc"
    model(kept, {"tokenizer.json": (WRITTEN / "bpe" / "tokenizer.json").read_bytes()})
    advice = advised(run, "--model", "org/model-70B", "--draft", pair[1], "--k", 4)
    assert advice.target is not None
    assert advice.target.parameters == 70_000_000_000
    assert "note: org/model-70B is incomplete in the hub's cache: only its tokenizer" in findings(
        advice
    )
    assert "target and draft have the same tokens" in findings(advice)


def test_a_model_of_which_the_cache_has_nothing_of_use(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--org--model-70B" / "snapshots" / "abc").mkdir(parents=True)
    advice = advised(run, "--model", "org/model-70B", "--method", "ngram")
    assert "note: org/model-70B is incomplete in the hub's cache" in findings(advice)


@pytest.mark.parametrize(
    "name",
    ["x" * 5000, "~nouser/x", "x/" * 3000, "\udce4-8B"],
    ids=["long", "a home", "deep", "no UTF-8"],
)
def test_a_name_that_can_be_no_path_is_a_name(run: Run, name: str) -> None:
    advice = advised(run, "--", "vllm", "serve", name, "--spec-method=ngram", "--spec-tokens=3")
    assert "its files are not here" in findings(advice)


def test_surrogates_are_escaped_in_json(run: Run, tmp_path: Path) -> None:
    """Lone surrogates, from a config.json and from a path that is not UTF-8."""
    target = folder(tmp_path / "target\udce4-8B", model_type="\ud800x")
    advice = advised(run, "--model", target, "--method", "ngram")
    assert advice.target is not None
    assert advice.target.name == "target\\udce4-8B"


@pytest.mark.parametrize("library", ["tokenizers", "safetensors"])
def test_a_missing_library_is_an_error_with_the_remedy(
    run: Run,
    pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    library: str,
) -> None:
    """Also for a model in the hub's cache; sizes and names need no library."""
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (pair[0] / "model.safetensors").write_bytes(safetensors({"a": ("BF16", [4], 8)}))
    snapshots = tmp_path / "models--org--model-70B" / "snapshots"
    snapshots.mkdir(parents=True)
    pair[0].rename(snapshots / "abc")
    done = run("advise", "--model", "org/model-70B", "--draft", pair[1])
    assert done.exit_code == 2
    message = " ".join(done.output.split())
    assert f"needs the package {library}" in message
    assert "-m pip install gguf safetensors sentencepiece tokenizers" in message
    assert advised(run, "--model", "70B", "--draft", "org/draft-7B").sound


def test_the_number_of_gpus_follows_from_parallelism(run: Run) -> None:
    advice = advised(
        run, "--model", "70B", "--draft", "7B", "--tensor-parallel", 4, "--gpu-memory", "80GB"
    )
    assert advice.memory is not None
    assert advice.memory.gpus == 4
    command = (
        "vllm",
        "serve",
        "org/M-70B",
        "-tp",
        2,
        "-pp",
        2,
        "--spec-method=ngram",
        "--spec-tokens=3",
    )
    more = advised(run, "--tensor-parallel", 4, "--gpu-memory", "80GB", "--", *command)
    assert more.memory is not None
    assert more.memory.gpus == 8


def test_a_model_that_brings_its_own_speculation(
    run: Run, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    target, _ = pair
    config = SMALL | {
        "architectures": ["Eagle3Speculator"],
        "num_hidden_layers": 1,
        "draft_vocab_size": 352,
        "speculators_model_type": "eagle3",
        "transformer_layer_config": SMALL,
        "speculators_config": {
            "verifier": {"name_or_path": str(target)},
            "proposal_methods": [{"speculative_tokens": 3}],
        },
    }
    head = model(tmp_path / "head", {"config.json": config})
    advice = advised(run, "--", "vllm", "serve", head)
    assert (advice.method, advice.k) == ("eagle3", 3)
    assert advice.target is not None
    assert advice.target.name == "target"
    assert "note: the model has its own speculation" in findings(advice)


def test_options_describe_the_traffic(run: Run) -> None:
    advice = advised(
        run,
        "--model",
        "70B",
        "--draft",
        "7B",
        "--temperature",
        "0:60%,0.9:40%",
        "--tool-calls",
        "--output-tokens",
        15,
        "--workload",
        "creative",
        "--saturated",
        "--concurrency",
        32,
        "--latency",
        "ttft",
    )
    for text in (
        "temperatures from 0 to 0.9 share",
        "answers of 15 tokens",
        "tool calls",
        "creative text",
        "the GPU is saturated",
        "32 requests at once",
        "TTFT is what matters",
    ):
        assert f"doubt: {text}" in findings(advice)
    equal = advised(run, "--model", "70B", "--draft", "7B", "--temperature", "0,1,1")
    assert "doubt: median temperature 1" in findings(equal)


USAGE: dict[str, tuple[list[object], str]] = {
    "nothing": ([], "give --model and --draft, or a command after --"),
    "no size": (["--model", "70B", "--gpu-memory", "80"], "80 has no unit"),
    "a temperature": (["--model", "70B", "--temperature", "hot"], "is not a temperature"),
    "a share": (["--model", "70B", "--temperature", "0:0%"], "is not a temperature"),
    "no share": (["--model", "70B", "--gpu-memory-utilization", "nan"], "is not a number above 0"),
    "all and more": (["--model", "70B", "--gpu-memory-utilization", "1.1"], "and up to 1"),
    "no memory": (["--model", "70B", "--gpu-memory", "0GB"], "is not the memory of a GPU"),
    "endless memory": (["--model", "70B", "--gpu-memory", f"{'9' * 400}GB"], "not the memory of a"),
    "a home": (["--model", "~nouser/x"], "cannot be read"),
    "a folder": (["--model", "/no/such/model"], "no such file or folder"),
    "a method": (["--model", "70B", "--method", "medusas"], 'did you mean "medusa"'),
    "a format": (["--model", "70B", "--quantization", "int5"], "is not a known format of weights"),
    "a command": (["--", "sleep", "1"], "COMMAND: there is no `vllm serve` or plain"),
    "no model": (["--", "vllm", "serve"], "there is no target"),
    "GPUs": (["--model", "8B", "--draft", "1B", "--gpus", "0"], "0 is not in the range"),
}


@pytest.mark.parametrize(("arguments", "expected"), USAGE.values(), ids=USAGE.keys())
def test_invalid_usage_is_exit_code_2(run: Run, arguments: list[object], expected: str) -> None:
    done = run("advise", *arguments)
    assert done.exit_code == 2, done.output
    assert expected in " ".join(done.output.split())
    assert "Traceback" not in done.output


WHOLE = (
    "--model",
    "meta-llama/Llama-3.1-70B-Instruct",
    "--draft",
    "meta-llama/Llama-3.2-1B",
    "--gpus",
    2,
    "--gpu-memory",
    "80GB",
    "--workload",
    "rag",
    "--saturated",
    "--temperature",
    "0:50%,1:50%",
    "--quantization",
    "fp8",
)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(run: Run, width: int) -> None:
    advice = advised(run, *WHOLE)
    shown = ["".join(text for text, _ in line) for line in lines(advice, width)]
    # A table cannot be wrapped.
    wide = [line for line in shown if len(line) > max(width, 55)]
    assert wide == []
    words = " ".join(" ".join(shown).split())
    for finding in advice.findings:
        assert " ".join(finding.text.split()) in words
        assert " ".join(finding.reason.split()) in words


def test_the_worst_findings_come_first_under_their_titles(run: Run) -> None:
    done = run("advise", "--model", "70B", "--draft", "8B", "--gpus", 2, "--gpu-memory", "80GB")
    assert done.exit_code == 1
    titles = [line for line in done.output.splitlines() if line[:1].isupper() and "(" in line]
    order = ["Wrong", "Measure first", "Notes", "Fine"]
    shown = [title for title in order if any(line.startswith(title) for line in titles)]
    places = [done.output.index(f"\n{title}") for title in shown]
    assert shown[0] == "Wrong"
    assert places == sorted(places)
    assert done.output.startswith("Do not start it like this: with the draft no memory is left for")


def test_nothing_in_a_name_can_command_the_terminal(run: Run) -> None:
    done = run(
        "advise",
        "--",
        "vllm",
        "serve",
        "a\x1b[2J-8B",
        "--spec-method",
        "ngram",
        "--spec-tokens",
        "3",
    )
    assert "\x1b" not in done.output
    assert "\\x1b[2J" in done.output
