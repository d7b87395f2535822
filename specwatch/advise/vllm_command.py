"""A command that starts vLLM, read as vLLM itself reads it.

Sources: ``EngineArgs.add_cli_args`` and ``human_readable_int`` of vLLM 0.32; for flags about
speculation :mod:`specwatch.stripping.flags`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from specwatch.advise.advice import Finding, ServerPlan, whole_number
from specwatch.domain.units import quoted
from specwatch.errors import ConfigError
from specwatch.stripping import Arguments, ReadFile, arguments
from specwatch.stripping.flags import Found as SpeculationFlag
from specwatch.stripping.word import UNKNOWN

OPTIONS = {
    "--tensor-parallel-size": "--te",
    "--pipeline-parallel-size": "--pi",
    "--data-parallel-size": "--data-parallel-size",
    "--gpu-memory-utilization": "--gp",
    "--max-model-len": "--max-m",
    "--max-num-seqs": "--max-num-se",
    "--quantization": "--quantization",
    "--kv-cache-dtype": "--kv-cache-dtype",
    "--dtype": "--dt",
}
"""Flags that take a value, with the shortest that vLLM 0.32 takes for them."""
_ALIASES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "--device-memory-utilization": "--gpu-memory-utilization",
}
_CONFIG = "--speculative-config"
_SHORTHANDS = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
_OLD_KEYS = {
    "--speculative-model": "model",
    "--speculative-model-quantization": "quantization",
    "--num-speculative-tokens": "num_speculative_tokens",
    "--speculative-draft-tensor-parallel-size": "draft_tensor_parallel_size",
    "-spec-draft-tp": "draft_tensor_parallel_size",
    "--speculative-max-model-len": "max_model_len",
    "--ngram-prompt-lookup-max": "prompt_lookup_max",
    "--ngram-prompt-lookup-min": "prompt_lookup_min",
}
_SPECULATORS = {"peagle": "eagle3", "dflash2": "dflash"}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_MOST_TOKENS = 10**12
_SCALE = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip


def read_vllm_command(command: Sequence[str], *, read_file: ReadFile | None = None) -> ServerPlan:
    """Read a command that starts vLLM; ``read_file`` gives the text of its ``--config`` file.

    Raises CannotStrip where its words are not certain, and ConfigError where vLLM would refuse a
    value.
    """
    given = arguments(command, read_file=read_file)
    values = _option_values(given.words)
    speculation, findings = _speculation(given)
    tensor_parallel = _count(values, "--tensor-parallel-size") or 1
    pipeline_parallel = _count(values, "--pipeline-parallel-size") or 1
    draft, method = speculation.get("model"), speculation.get("method")
    return ServerPlan(
        from_command=True,
        target=None if given.model is None or UNKNOWN in given.model else given.model,
        draft=None if draft is None else str(draft),
        method=None if method is None else str(method),
        k=whole_number(speculation.get("num_speculative_tokens")),
        speculation=speculation,
        gpus=tensor_parallel * pipeline_parallel,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        data_parallel=_count(values, "--data-parallel-size") or 1,
        utilization=_utilization(values),
        context=_context(values),
        slots=_count(values, "--max-num-seqs"),
        dtype=_not_auto(values.get("--dtype")),
        quantization=_not_auto(values.get("--quantization")),
        draft_quantization=_not_auto(speculation.get("quantization")),
        kv_dtype=_not_auto(values.get("--kv-cache-dtype")),
        findings=tuple(findings),
    )


def _option_values(words: Sequence[str]) -> dict[str, str]:
    """The values of :data:`OPTIONS` by their full names; the last of several counts."""
    values: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        head, equals, value = word.partition("=")
        if not head.startswith("-"):
            continue
        name = head.replace("_", "-") if head.startswith("--") else head
        name = _ALIASES.get(name, name)
        flag = next(
            (
                flag
                for flag, shortest in OPTIONS.items()
                if flag.startswith(name) and len(name) >= len(shortest)
            ),
            None,
        )
        if not equals and (flag or "." in name):
            value = next(rest, "")
        if flag and value and UNKNOWN not in value:
            values[flag] = value
    return values


def _speculation(given: Arguments) -> tuple[dict[str, Any], list[Finding]]:
    """The configuration as vLLM puts it together, and what is wrong with how it is written."""
    whole: dict[str, Any] = {}
    dotted: dict[str, Any] = {}
    shorthands: dict[str, tuple[str, Any]] = {}
    old: dict[str, Any] = {}
    for flag in given.speculation:
        if flag.value is not None and UNKNOWN in flag.value:
            raise ConfigError(f"{flag.flag}: its value is made by a shell: write it out")
        if flag.is_old:
            old |= _old_keys(flag)
        elif flag.flag == _CONFIG and flag.key:
            _set_dotted(dotted, flag)
        elif flag.flag == _CONFIG:
            whole = _json_config(flag)
        elif flag.is_set and flag.flag in _SHORTHANDS:
            shorthands[_SHORTHANDS[flag.flag]] = (flag.flag, flag.value)
    findings: list[Finding] = []
    source = "vLLM 0.32, EngineArgs.create_speculative_config"
    if dotted and whole:
        lost = sorted(set(whole) - set(dotted))
        findings.append(
            Finding(
                "method", "doubt" if lost else "note",
                f"keys such as {_CONFIG}.{next(iter(dotted))} replace the whole {_CONFIG}",
                f"lost: {', '.join(lost)}" if lost else "the keys repeat all that it has",
                "vLLM 0.32, its FlexibleArgumentParser",
                f"write one {_CONFIG} with all keys in it",
            )
        )  # fmt: skip
    config = {key.replace("-", "_"): value for key, value in (dotted or whole).items()}
    for key, (name, value) in shorthands.items():
        if key in config:
            text = f"{name} and {key} in {_CONFIG} exclude each other: vLLM does not start"
            findings.append(Finding("method", "wrong", text, "", source, "leave one of them out"))
        config[key] = value
    if old:
        findings.extend(_old_flags(given.speculation))
    elif not config and any(flag.flag == _CONFIG and flag.is_set for flag in given.speculation):
        findings.append(
            Finding(
                "method", "wrong", f"{_CONFIG} is empty: vLLM does not start", "", source,
                "name a method and num_speculative_tokens, or leave the flag out",
            )
        )  # fmt: skip
    return {**old, **config}, findings


def _old_keys(flag: SpeculationFlag) -> dict[str, Any]:
    key = _OLD_KEYS.get(flag.flag)
    if key is None or flag.value is None or not flag.is_set:
        return {}
    if key == "model" and flag.value == "[ngram]":
        return {"method": "ngram", "model": "[ngram]"}
    return {key: flag.value}


def _set_dotted(config: dict[str, Any], flag: SpeculationFlag) -> None:
    *parents, last = flag.key.split(".")
    for parent in parents:
        config = config.setdefault(parent, {})
        if not isinstance(config, dict):
            raise ConfigError(f"{_CONFIG}.{flag.key}: {parent} has a value of its own already")
    value = flag.value or ""
    if last.endswith("+"):
        config.setdefault(last[:-1], []).extend(map(_json_or_text, value.split(",")))
    else:
        config[last] = _json_or_text(value)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _json_config(flag: SpeculationFlag) -> dict[str, Any]:
    if not flag.is_set:
        return {}
    try:
        config = json.loads(flag.value or "")
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ConfigError(
            f"{_CONFIG} {quoted(flag.value)} is not a JSON object: write it like"
            ' \'{"method": "ngram", "num_speculative_tokens": 5}\''
        )
    return config


def _old_flags(flags: Sequence[SpeculationFlag]) -> Iterator[Finding]:
    names = sorted({flag.flag for flag in flags if flag.is_old})
    yield Finding(
        "method", "doubt", f"only vLLM up to 0.8.2 knows {', '.join(names)}",
        "they went with the V0 engine: vLLM from 0.8.3 on does not start with them",
        "vLLM 0.8.3, its command line",
        f"write {_CONFIG} '{{...}}'; what follows takes them for its keys",
    )  # fmt: skip
    for flag in flags:
        if flag.flag == "--spec-decoding-acceptance-method" and flag.value not in (
            None, "rejection_sampler",
        ):  # fmt: skip
            yield Finding(
                "method", "doubt",
                f"the acceptance method {flag.value} changes what the model says",
                "it accepts tokens that are merely likely: quality for speed; rejection sampling"
                " leaves the distribution as it is",
                "reported [T]", "leave the flag out: rejection_sampler is the default",
            )  # fmt: skip


def _not_auto(value: object) -> str | None:
    return None if value in (None, "", "auto", "None") else str(value)


def _count(values: Mapping[str, str], flag: str) -> int | None:
    value = values.get(flag)
    if value is None:
        return None
    count = whole_number(value)
    if count is None or count < 1:
        raise ConfigError(f"{flag} {quoted(value)} is not a whole number of at least 1")
    return count


def _utilization(values: Mapping[str, str]) -> float | None:
    flag = "--gpu-memory-utilization"
    value = values.get(flag)
    if value is None:
        return None
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"{flag} {quoted(value)} is not a number above 0 and up to 1")
    return share


def _context(values: Mapping[str, str]) -> int | None:
    flag = "--max-model-len"
    value = values.get(flag)
    if value is None or value == "-1" or value.lower() == "auto":
        return None
    match = _LENGTH.fullmatch(value.strip())
    tokens = 0
    if match is not None and not (match[2].isupper() and "." in match[1]):
        tokens = int(Decimal(match[1]) * _SCALE[match[2]])
    if not 0 < tokens <= _MOST_TOKENS:
        raise ConfigError(f"{flag} {quoted(value)} is not a number of tokens, like 8192, 8k or 8K")
    return tokens


def with_own_speculation(plan: ServerPlan, config: Mapping[str, Any], where: str) -> ServerPlan:
    """Return the plan with a target that brings its own speculation taken apart.

    ``config`` is that of the target. As ``maybe_override_with_speculators`` of vLLM 0.32, which
    serves the verifier that a checkpoint of *speculators* names, with the checkpoint as its draft,
    whatever the flags say. Raises ConfigError where such a checkpoint names no verifier.
    """
    given = config.get("speculators_config")
    if given is None:
        return plan
    verifier = given.get("verifier") if isinstance(given, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    method = config.get("speculators_model_type")
    if not isinstance(name, str) or not isinstance(method, str):
        raise ConfigError(
            f"{where}: speculators_config has no verifier.name_or_path, or speculators_model_type"
            " is missing: expected a checkpoint made by the package speculators"
        )
    k = plan.k
    if k is None:
        proposals = given.get("proposal_methods")
        first = proposals[0] if isinstance(proposals, list) and proposals else None
        k = whole_number(first.get("speculative_tokens") if isinstance(first, Mapping) else None)
    finding = Finding(
        "method", "note",
        f"the model brings its own speculation: {name} is served, with it as a draft",
        "whatever the flags say of method and model", f"{where}: speculators_config",
    )  # fmt: skip
    return replace(
        plan, target=name, draft=plan.target, method=_SPECULATORS.get(method, method), k=k,
        speculation={**plan.speculation, "num_speculative_tokens": k},
        findings=(*plan.findings, finding),
    )  # fmt: skip
