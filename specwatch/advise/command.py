"""What a command that starts vLLM asks for, read as vLLM itself reads it.

Sources: ``EngineArgs.add_cli_args`` and ``human_readable_int`` of vLLM 0.32; for flags about
speculation :mod:`specwatch.stripping.flags`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from specwatch.advise.asked import Asked
from specwatch.advise.model import Finding
from specwatch.errors import ConfigError
from specwatch.scalars import quoted
from specwatch.stripping import Arguments, ReadFile, arguments
from specwatch.stripping.flags import Found
from specwatch.stripping.word import UNKNOWN

SIZES = {
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
_SHORTHANDS = {"--spec-method": "method", "--spec-model": "model"}
_SHORTHAND_TOKENS = "--spec-tokens"
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
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_MOST_TOKENS = 10**12
_SCALE = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip


def asked(command: Sequence[str], *, read_file: ReadFile | None = None) -> Asked:
    """Read a command that starts vLLM; ``read_file`` gives the text of its ``--config`` file.

    Raises CannotStrip where its words cannot be told for sure, and ConfigError where vLLM would
    refuse a value.
    """
    given = arguments(command, read_file=read_file)
    sizes = _sizes(given.words)
    speculation, findings = _speculation(given)
    tensor_parallel = _count(sizes, "--tensor-parallel-size")
    pipeline_parallel = _count(sizes, "--pipeline-parallel-size") or 1
    draft = speculation.get("model")
    return Asked(
        written=True,
        target=_known(given.model),
        draft=None if draft is None else str(draft),
        method=None if speculation.get("method") is None else str(speculation["method"]),
        k=whole(speculation.get("num_speculative_tokens")),
        speculation=speculation,
        gpus=(tensor_parallel or 1) * pipeline_parallel,
        tensor_parallel=tensor_parallel or 1,
        pipeline_parallel=pipeline_parallel,
        data_parallel=_count(sizes, "--data-parallel-size") or 1,
        utilization=_share(sizes, "--gpu-memory-utilization"),
        context=_length(sizes, "--max-model-len"),
        slots=_count(sizes, "--max-num-seqs"),
        dtype=_not_auto(sizes.get("--dtype")),
        quantization=_not_auto(sizes.get("--quantization")),
        draft_quantization=_not_auto(speculation.get("quantization")),
        kv_dtype=_not_auto(sizes.get("--kv-cache-dtype")),
        findings=tuple(findings),
    )


def whole(value: object) -> int | None:
    """Read a whole number as vLLM does of a configuration's values; None where it is none."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", value):
        return int(value)
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return None


def _sizes(words: Sequence[str]) -> dict[str, str]:
    """The values of flags about sizes by their full names; the last of several counts."""
    found: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at] != "--":
        head, equals, value = words[at].partition("=")
        at += 1
        if not head.startswith("-"):
            continue
        name = head.replace("_", "-") if head.startswith("--") else head
        if "." in name:
            at += not equals
        elif flag := _full(name):
            if not equals:
                value = words[at] if at < len(words) else ""
                at += 1
            if value and UNKNOWN not in value:
                found[flag] = value
    return found


def _full(name: str) -> str | None:
    name = _ALIASES.get(name, name)
    return next(
        (
            flag
            for flag, least in SIZES.items()
            if flag.startswith(name) and len(name) >= len(least)
        ),
        None,
    )


def _speculation(given: Arguments) -> tuple[dict[str, Any], list[Finding]]:
    """The keys of the configuration as vLLM puts them together, and what is wrong with that."""
    whole_config: dict[str, Any] = {}
    dotted: dict[str, Any] = {}
    shorthands: dict[str, tuple[str, Any]] = {}
    old: dict[str, Any] = {}
    findings: list[Finding] = []
    for flag in given.speculation:
        if flag.value is not None and UNKNOWN in flag.value:
            raise ConfigError(f"{flag.flag}: its value is put together by a shell: write it out")
        if flag.is_old:
            old |= _old(flag)
        elif flag.flag == _CONFIG and flag.key:
            _nest(dotted, flag)
        elif flag.flag == _CONFIG:
            whole_config = _object(flag)
        elif flag.is_set and flag.flag in _SHORTHANDS:
            shorthands[_SHORTHANDS[flag.flag]] = (flag.flag, flag.value)
        elif flag.is_set and flag.flag == _SHORTHAND_TOKENS:
            shorthands["num_speculative_tokens"] = (flag.flag, flag.value)
    if dotted and whole_config:
        findings.append(_replaced(whole_config, dotted))
    config = {key.replace("-", "_"): value for key, value in (dotted or whole_config).items()}
    for key, (name, value) in shorthands.items():
        if key in config:
            findings.append(_twice(name, key))
        config[key] = value
    if old:
        findings.extend(_gone(given.speculation))
    elif not config and any(flag.flag == _CONFIG and flag.is_set for flag in given.speculation):
        findings.append(_empty())
    return {**old, **config}, findings


def _old(flag: Found) -> dict[str, Any]:
    key = _OLD_KEYS.get(flag.flag)
    if key is None or flag.value is None or not flag.is_set:
        return {}
    if key == "model" and flag.value == "[ngram]":
        return {"method": "ngram", "model": "[ngram]"}
    return {key: flag.value}


def _nest(into: dict[str, Any], flag: Found) -> None:
    *parents, last = flag.key.split(".")
    for parent in parents:
        into = into.setdefault(parent, {})
        if not isinstance(into, dict):
            raise ConfigError(f"{_CONFIG}.{flag.key}: {parent} has a value of its own already")
    value = flag.value or ""
    if last.endswith("+"):
        into.setdefault(last[:-1], []).extend(map(_parsed, value.split(",")))
    else:
        into[last] = _parsed(value)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _object(flag: Found) -> dict[str, Any]:
    if not flag.is_set:
        return {}
    try:
        found = json.loads(flag.value or "")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"{_CONFIG} {quoted(flag.value)} is no JSON object: write it like"
            ' \'{"method": "ngram", "num_speculative_tokens": 5}\''
        )
    return found


def _replaced(whole_config: Mapping[str, Any], dotted: Mapping[str, Any]) -> Finding:
    lost = sorted(set(whole_config) - set(dotted))
    return Finding(
        topic="method",
        level="doubt" if lost else "note",
        text=f"keys such as {_CONFIG}.{next(iter(dotted))} replace the whole {_CONFIG}",
        reason=f"lost: {', '.join(lost)}" if lost else "what it says is said again by the keys",
        source="vLLM 0.32, its FlexibleArgumentParser",
        remedy=f"write one {_CONFIG} with all keys in it",
    )


def _empty() -> Finding:
    return Finding(
        topic="method",
        level="wrong",
        text=f"{_CONFIG} is empty: vLLM does not start",
        source="vLLM 0.32, EngineArgs.create_speculative_config",
        remedy="name a method and num_speculative_tokens, or leave the flag out",
    )


def _twice(flag: str, key: str) -> Finding:
    return Finding(
        topic="method",
        level="wrong",
        text=f"{flag} and {key} in {_CONFIG} exclude each other: vLLM does not start",
        source="vLLM 0.32, EngineArgs.create_speculative_config",
        remedy="leave one of them out",
    )


def _gone(found: Sequence[Found]) -> list[Finding]:
    names = sorted({flag.flag for flag in found if flag.is_old})
    findings = [
        Finding(
            topic="method",
            level="doubt",
            text=f"only vLLM up to 0.8.2 knows {', '.join(names)}",
            reason="they went with the V0 engine: vLLM from 0.8.3 on does not start with them",
            source="vLLM 0.8.3, its command line",
            remedy=f"write {_CONFIG} '{{...}}'; what follows takes them for its keys",
        )
    ]
    method = next((f.value for f in found if f.flag == "--spec-decoding-acceptance-method"), None)
    if method is not None and method != "rejection_sampler":
        findings.append(
            Finding(
                topic="method",
                level="doubt",
                text=f"the acceptance method {method} changes what the model says",
                reason="it accepts tokens that are merely likely: quality for speed; rejection"
                " sampling leaves the distribution as it is",
                source="reported [T]",
                remedy="leave the flag out: rejection_sampler is the default",
            )
        )
    return findings


def _known(word: str | None) -> str | None:
    return None if word is None or UNKNOWN in word else word


def _not_auto(value: object) -> str | None:
    return None if value in (None, "", "auto", "None") else str(value)


def _count(sizes: Mapping[str, str], flag: str) -> int | None:
    value = sizes.get(flag)
    if value is None:
        return None
    count = whole(value)
    if count is None or count < 1:
        raise ConfigError(f"{flag} {quoted(value)} is not a whole number of at least 1")
    return count


def _share(sizes: Mapping[str, str], flag: str) -> float | None:
    value = sizes.get(flag)
    if value is None:
        return None
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"{flag} {quoted(value)} is not a number above 0 and up to 1")
    return share


def _length(sizes: Mapping[str, str], flag: str) -> int | None:
    value = sizes.get(flag)
    if value is None or value == "-1" or value.lower() == "auto":
        return None
    match = _LENGTH.fullmatch(value.strip())
    tokens = 0
    if match is not None and not (match[2].isupper() and "." in match[1]):
        tokens = int(Decimal(match[1]) * _SCALE[match[2]])
    if not 0 < tokens <= _MOST_TOKENS:
        raise ConfigError(f"{flag} {quoted(value)} is not a number of tokens, like 8192, 8k or 8K")
    return tokens
