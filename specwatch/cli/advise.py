"""``specwatch advise``: is this pairing sound, before anything is started."""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from typing import Any, get_args

import click
import msgspec

from specwatch import __version__
from specwatch.advise.advice import Advice, Latency, ServerPlan, Traffic, Workload
from specwatch.advise.advise import AdviceRequest, advise
from specwatch.advise.llama_command import read_llama_command, starts_llama
from specwatch.advise.vllm_command import read_vllm_command
from specwatch.cli import advise_models, options
from specwatch.cli.advise_lines import lines
from specwatch.cli.terminal import Terminal
from specwatch.domain.units import parse_ratio, parse_size, quoted
from specwatch.errors import CannotStrip, ConfigError
from specwatch.runtime.text_file import read_text

_LARGEST_GPU = 10**15
_WHOLE = click.IntRange(min=1, max=10**9)
_MIX = re.compile(r"(?P<temperature>[0-9.]+)(?::(?P<share>[0-9.]+%?))?")
_HOTTEST = 5.0


def _bytes(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        size = parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not 0 < size <= _LARGEST_GPU:
        raise click.BadParameter(f"{quoted(text)} is more, or less, than any GPU has")
    return size


def _utilization(_: click.Context, __: click.Parameter, share: float | None) -> float | None:
    if share is not None and not (math.isfinite(share) and 0 < share <= 1):
        raise click.BadParameter(f"{share} is not a number above 0 and up to 1")
    return share


def _mix(
    _: click.Context, __: click.Parameter, text: str | None
) -> tuple[tuple[float, float], ...]:
    """Temperatures with their shares, which add up to 1."""
    if text is None:
        return ()
    mix: list[tuple[float, float]] = []
    for part in text.split(","):
        match = _MIX.fullmatch(part.strip())
        try:
            temperature = float(match["temperature"]) if match else -1.0
            share = parse_ratio(match["share"]) if match and match["share"] else 1.0
        except ValueError:
            temperature = -1.0
        if not 0 <= temperature <= _HOTTEST or share <= 0:
            raise click.BadParameter(
                f"{quoted(part)} is no temperature; write 0.7, or a mix such as 0:60%,0.9:40%"
            )
        mix.append((temperature, share))
    total = sum(share for _, share in mix)
    return tuple(sorted((temperature, share / total) for temperature, share in mix))


@click.command(name="advise")
@click.option("--model", metavar="FOLDER|PARAMS", help="The target: its folder, a .gguf file, a"
              " name on the hub, or just its parameters, such as 70B.")  # fmt: skip
@click.option("--draft", metavar="FOLDER|PARAMS", help="The draft, likewise.")
@click.option("--method", help="How to draft; by default what the draft is made for.")
@click.option("--k", type=click.IntRange(min=1), metavar="N", help="Draft tokens per step.")
@click.option(
    "--gpus", type=_WHOLE, metavar="N", help="GPUs of one server; by default those of this machine."
)
@click.option("--gpu-memory", callback=_bytes, metavar="SIZE", help="Of each GPU: 80GB, or 80GiB,"
              " which is 7 % more. As cards sold as 80GB may have that, a plan that is short by"
              " less than 8 % is to be measured, not wrong.")  # fmt: skip
@click.option(
    "--gpu-memory-utilization",
    "utilization",
    type=float,
    callback=_utilization,
    help="As vLLM's flag; 0.92 by default.",
)
@click.option("--tensor-parallel", type=_WHOLE, metavar="N", help="GPUs that share out each layer.")
@click.option("--dtype", help="Type of the weights: bfloat16, float16, float32.")
@click.option("--quantization", help="Of the target: fp8, int8, awq, gptq, nvfp4, Q4_K_M, ...")
@click.option("--draft-quantization", help="Of the draft.")
@click.option("--context", type=_WHOLE, metavar="TOKENS", help="Longest request, its answer too.")
@click.option(
    "--concurrency", type=_WHOLE, metavar="N", help="Requests at once, on an ordinary day."
)
@click.option("--temperature", "temperatures", callback=_mix, metavar="T|MIX",
              help="Of the traffic: 0.7, or 0:60%,0.9:40%.")  # fmt: skip
@click.option("--output-tokens", type=_WHOLE, metavar="N", help="Of a usual answer.")
@click.option("--tool-calls", is_flag=True, help="Agents that call tools in a loop.")
@click.option("--workload", type=click.Choice(get_args(Workload)), help="What it is mostly.")
@click.option("--saturated", is_flag=True, help="The GPU has no arithmetic to spare.")
@click.option("--latency", type=click.Choice(get_args(Latency)), help="What matters most.")
@options.json_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(as_json: bool, words: tuple[str, ...], **given: Any) -> None:
    """Say whether a target and a draft go together, before anything is started.

    Either by options, or by the flags of a command that starts vLLM or llama-server:

    \b
      specwatch advise --model 70B --draft 8B --gpus 2 --gpu-memory 80GB
      specwatch advise --temperature 0.9 -- vllm serve M -tp 4 -sc '{...}'
      specwatch advise -- llama-server -m T.gguf -md D.gguf --spec-draft-n-max 16

    Tokenizers token by token, sizes, memory with and without the draft, what the method needs, k,
    and what is said of the traffic, each with its reason and who says so. Nothing is downloaded: a
    model is looked for in its folder and in the local cache of the hub, and is else what its name
    says. Only headers of weights are read.

    Exit code 1 when something is wrong.
    """
    plan = _plan(words, given)
    traffic = Traffic(**{name: given[name] for name in Traffic.__dataclass_fields__})
    models = advise_models.Models(os.environ, strict=not words)
    plan = models.unfold(plan)
    target = models.target(plan)
    draft = models.draft(plan, plan.method)
    gpus, memory, findings = advise_models.gpus(plan, given["gpus"], given["gpu_memory"])
    advice = advise(
        AdviceRequest(
            version=__version__,
            plan=plan if plan.gpus is not None else replace(plan, gpus=gpus),
            traffic=traffic,
            target=target,
            draft=draft,
            gpus=gpus,
            gpu_memory=memory,
            gpu_findings=findings,
        )
    )
    _show(advice, as_json=as_json)
    raise SystemExit(0 if advice.sound else 1)


def _plan(words: tuple[str, ...], given: dict[str, Any]) -> ServerPlan:
    """What the options ask, over what a command asks."""
    own = {
        "target": given["model"],
        **{
            name: given[name]
            for name in (
                "draft", "method", "k", "gpus", "utilization", "tensor_parallel", "dtype",
                "quantization", "draft_quantization", "context",
            )
        },
    }  # fmt: skip
    if not words:
        if given["model"] is None:
            raise click.UsageError(
                "give --model and --draft, or a command after --: -- vllm serve ..."
            )
        plan = ServerPlan()
    else:
        plan = _read_command(words)
    return advise_models.with_options(plan, own)


def _read_command(words: tuple[str, ...]) -> ServerPlan:
    try:
        if starts_llama(words):
            return read_llama_command(words)
        return read_vllm_command(words, read_file=read_text)
    except CannotStrip as error:
        raise ConfigError(f"COMMAND: {error}") from error


def _encodable(value: Any) -> Any:
    """The same with surrogates spelt, which names that are no UTF-8 have, and JSON cannot."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value


def _show(advice: Advice, *, as_json: bool) -> None:
    if as_json:
        options.print_json(_encodable(msgspec.to_builtins(advice)))
        return
    terminal = Terminal()
    for line in lines(advice, terminal.width):
        terminal.line(*line)
