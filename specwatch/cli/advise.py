"""``specwatch advise``: checks a target and a draft model before they are started."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any, get_args

import click
import msgspec

from specwatch import __version__
from specwatch.cli import advise_models, options
from specwatch.cli.advise_lines import lines
from specwatch.cli.terminal import Terminal
from specwatch.domain.units import parse_ratio, parse_size, quoted
from specwatch.errors import CannotStrip, ConfigError
from specwatch.lab.advise.advice import Latency, ServerPlan, Traffic, Workload
from specwatch.lab.advise.advise import AdviceRequest, advise
from specwatch.lab.advise.llama_command import read_llama_command, starts_llama
from specwatch.lab.advise.vllm_command import read_vllm_command
from specwatch.runtime.text_file import read_text

_LARGEST_GPU = 10**15
_WHOLE = click.IntRange(min=1, max=10**9)
_MIX = re.compile(r"(?P<temperature>[0-9.]+)(?::(?P<share>[0-9.]+%?))?")
_HOTTEST = 5.0


def _bytes(text: str) -> int:
    size = parse_size(text)
    if not 0 < size <= _LARGEST_GPU:
        raise ValueError(f"{quoted(text)} is not the memory of a GPU")
    return size


def _utilization(share: float) -> float:
    if not 0 < share <= 1:
        raise ValueError(f"{share} is not a number above 0 and up to 1")
    return share


def _mix(text: str) -> tuple[tuple[float, float], ...]:
    """Temperatures with their shares, which add up to 1."""
    mix: list[tuple[float, float]] = []
    for part in text.split(","):
        match = _MIX.fullmatch(part.strip())
        try:
            temperature = float(match["temperature"]) if match else -1.0
            share = parse_ratio(match["share"]) if match and match["share"] else 1.0
        except ValueError:
            temperature = -1.0
        if not 0 <= temperature <= _HOTTEST or share <= 0:
            raise ValueError(
                f"{quoted(part)} is not a temperature; write 0.7, or a mix such as 0:60%,0.9:40%"
            )
        mix.append((temperature, share))
    total = sum(share for _, share in mix)
    return tuple(sorted((temperature, share / total) for temperature, share in mix))


@click.command(name="advise")
@click.option(
    "--model",
    "target",
    metavar="FOLDER|PARAMS",
    help="The target: its folder, a .gguf"
    " file, a name on the hub, or only its number of parameters, such as"
    " 70B.",
)
@click.option("--draft", metavar="FOLDER|PARAMS", help="The draft, likewise.")
@click.option("--method", help="Drafting method.  [default: that of the draft model]")
@click.option("--k", type=click.IntRange(min=1), metavar="N", help="Draft tokens per step.")
@click.option(
    "--gpus", type=_WHOLE, metavar="N", help="GPUs of one server.  [default: those of this machine]"
)
@click.option(
    "--gpu-memory",
    callback=options.parsed(_bytes),
    metavar="SIZE",
    help="Memory of each"
    " GPU: 80GB, or 80GiB, which is 7 % more. Cards sold as 80GB may have 80GiB, so a"
    " plan that lacks less than 8 % is to be measured, not wrong.",
)
@click.option(
    "--gpu-memory-utilization",
    "utilization",
    type=float,
    callback=options.parsed(_utilization),
    help="As vLLM's flag.  [default: 0.92]",
)
@click.option("--tensor-parallel", type=_WHOLE, metavar="N", help="GPUs that share each layer.")
@click.option("--dtype", help="Type of the weights: bfloat16, float16, float32.")
@click.option(
    "--quantization", help="Quantization of the target: fp8, int8, awq, gptq, nvfp4, Q4_K_M, ..."
)
@click.option("--draft-quantization", help="Quantization of the draft.")
@click.option("--context", type=_WHOLE, metavar="TOKENS", help="Longest request, with its answer.")
@click.option("--concurrency", type=_WHOLE, metavar="N", help="Usual number of requests at once.")
@click.option(
    "--temperature",
    "temperatures",
    callback=options.parsed(_mix),
    metavar="T|MIX",
    help="Temperature of the traffic: 0.7, or 0:60%,0.9:40%.",
)
@click.option("--output-tokens", type=_WHOLE, metavar="N", help="Usual length of an answer.")
@click.option("--tool-calls", is_flag=True, help="The traffic is agents that call tools in a loop.")
@click.option("--workload", type=click.Choice(get_args(Workload)), help="Main kind of traffic.")
@click.option("--saturated", is_flag=True, help="The GPU has no compute to spare.")
@click.option("--latency", type=click.Choice(get_args(Latency)), help="Most important latency.")
@options.json_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(as_json: bool, words: tuple[str, ...], **given: Any) -> None:
    """Check whether a target and a draft model go together, before anything is started.

    Describe them by options, or by a command that starts vLLM or llama-server. It compares the
    tokenizers token by token, and checks sizes, memory with and without the draft, the method's
    requirements, k, and the traffic; each finding has its reason and source. It downloads nothing:
    it reads a model from its folder or the local cache of the hub, and otherwise derives what it
    can from the name. Of weights it reads only headers.

    Exit code 1 when something is wrong.
    """
    plan = _plan(words, given)
    given["temperatures"] = given["temperatures"] or ()
    traffic = Traffic(**{name: given[name] for name in Traffic.__dataclass_fields__})
    models = advise_models.LocalModels(os.environ, strict=not words)
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
    if as_json:
        options.print_json(_encodable(msgspec.to_builtins(advice)))
    else:
        terminal = Terminal()
        terminal.lines(lines(advice, terminal.width))
    raise SystemExit(0 if advice.sound else 1)


def _plan(words: tuple[str, ...], given: dict[str, Any]) -> ServerPlan:
    """The plan of the options, which override those of the command."""
    if not words:
        if given["target"] is None:
            raise click.UsageError(
                "give --model and --draft, or a command after --: -- vllm serve ..."
            )
        return advise_models.with_options(ServerPlan(), given)
    try:
        plan = (
            read_llama_command(words)
            if starts_llama(words)
            else read_vllm_command(words, read_file=read_text)
        )
    except CannotStrip as error:
        raise ConfigError(f"COMMAND: {error}") from error
    return advise_models.with_options(plan, given)


def _encodable(value: Any) -> Any:
    """The same value with escaped surrogates, which file names may have, but not JSON."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value
