"""Commands that start vLLM are read as vLLM reads them; the real one agrees in tests/e2e."""

from __future__ import annotations

import json
import shlex

import pytest

from specwatch.errors import CannotStrip, ConfigError
from specwatch.lab.advise.advice import ServerPlan, whole_number
from specwatch.lab.advise.vllm_command import read_vllm_command, with_own_speculation


def plan(line: str, file: str | None = None) -> ServerPlan:
    def read(path: str) -> str:
        if file is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        return file

    return read_vllm_command(shlex.split(line), read_file=read)


NGRAM = shlex.quote(json.dumps({"method": "ngram", "num_speculative_tokens": 5}))


def test_model_method_and_sizes_are_read() -> None:
    result = plan(f"docker run --gpus all vllm/vllm-openai --model M -sc {NGRAM}")
    assert (result.target, result.method, result.k, result.from_command) == ("M", "ngram", 5, True)
    result = plan(
        "vllm serve M -tp 4 --pipeline_parallel_size=2 --gpu-mem 0.85 --max-model-len 32k"
        " --max-num-seqs 64 -q fp8 --kv-cache-dtype fp8_e4m3 --dtype float16 -dp 2"
    )
    assert (result.tensor_parallel, result.pipeline_parallel, result.data_parallel) == (4, 2, 2)
    assert result.gpus == 8, "of one engine"
    assert (result.utilization, result.context, result.slots) == (0.85, 32_000, 64)
    assert (result.quantization, result.kv_dtype, result.dtype) == ("fp8", "fp8_e4m3", "float16")


def test_the_last_of_several_values_counts_and_auto_is_no_value() -> None:
    result = plan("vllm serve M -tp 2 --tensor-parallel-size 4 --dtype auto --max-model-len auto")
    assert (result.tensor_parallel, result.dtype, result.context) == (4, None, None)


def test_a_value_is_no_flag_of_its_own() -> None:
    """A key after a dot takes the next word, whatever it looks like."""
    result = plan("vllm serve M -tp 2 --hf-overrides.x -tp 4 --served-model-name a b -- -tp 8")
    assert result.tensor_parallel == 2


def test_the_config_file_is_read_and_the_command_line_wins() -> None:
    file = (
        "model: F\ntensor-parallel-size: 4\nspec-method: ngram\nspec-tokens: 3\nmax-model-len: 1k"
    )
    result = plan("vllm serve --config c.yaml -tp 2", file)
    assert (result.target, result.tensor_parallel, result.context) == ("F", 2, 1000)
    assert (result.method, result.k) == ("ngram", 3)
    with pytest.raises(CannotStrip, match="cannot be read"):
        plan("vllm serve M --config c.yaml")


def test_keys_after_dots_replace_a_whole_configuration() -> None:
    result = plan(f"vllm serve M -sc {NGRAM} --speculative-config.method suffix")
    assert (result.method, result.k) == ("suffix", None)
    assert [(item.level, item.reason) for item in result.findings] == [
        ("doubt", "ignored: num_speculative_tokens")
    ]


@pytest.mark.parametrize("empty", ["{}", "null", ""])
def test_an_empty_configuration_names_no_method(empty: str) -> None:
    assert plan(f"vllm serve M -sc {empty!r}").method is None


def test_flags_up_to_0_8_2_are_a_doubt() -> None:
    result = plan(
        "vllm serve M --speculative-model D --num-speculative-tokens 5 -tp 4"
        " --speculative-draft-tensor-parallel-size 1 --speculative-disable-by-batch-size 8"
        " --spec-decoding-acceptance-method typical_acceptance_sampler"
    )
    assert (result.draft, result.k) == ("D", 5)
    assert result.speculation["draft_tensor_parallel_size"] == "1"
    assert "disable_by_batch_size" not in result.speculation, "then it was no mistake"
    assert [item.level for item in result.findings] == ["doubt", "doubt"]
    assert "only vLLM up to 0.8.2" in result.findings[0].text
    assert "typical_acceptance_sampler changes the output of the model" in result.findings[1].text


WRONG = {
    "GPUs": ("-tp none", '--tensor-parallel-size "none" is not a whole number'),
    "no GPU": ("-tp 0", "is not a whole number of at least 1"),
    "a share": ("--gpu-memory-utilization 90", "is not a number above 0 and up to 1"),
    "a length": ("--max-model-len 1.5K", "is not a number of tokens"),
    "a length without end": (f"--max-model-len {'9' * 400}", "is not a number of tokens"),
    "no length": ("--max-model-len 0", "is not a number of tokens"),
    "a share that is none": ("--gpu-memory-utilization nan", "is not a number above 0"),
}


@pytest.mark.parametrize(("flags", "message"), WRONG.values(), ids=WRONG.keys())
def test_values_that_vllm_refuses_are_refused(flags: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(f"vllm serve M {flags}")


def test_whole_numbers_are_taken_as_vllm_takes_them() -> None:
    values = [5, "5", 5.0, " 5 ", "-1", "five", None, 2.5, [5], "9" * 30]
    assert [whole_number(value) for value in values] == [5, 5, 5, 5, -1, *[None] * 5]


def test_a_checkpoint_of_speculators_must_name_its_verifier() -> None:
    given = ServerPlan(target="org/head")
    assert with_own_speculation(given, {}, "x") == given
    with pytest.raises(ConfigError, match=r"^x: speculators_config has no verifier\.name_or_path"):
        with_own_speculation(given, {"speculators_config": {}}, "x")
