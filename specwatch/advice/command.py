"""What a command that starts vLLM asks for, read as vLLM itself reads it.

Source: ``human_readable_int`` of vLLM 0.32; for its flags :mod:`specwatch.vllm_cli`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from specwatch.advice.asked import Asked
from specwatch.advice.model import Finding
from specwatch.errors import ConfigError
from specwatch.scalars import quoted
from specwatch.vllm_cli import ReadFile, read_command
from specwatch.vllm_cli.command import SHORTHANDS, Option, speculation_of
from specwatch.vllm_cli.flags import SPECULATIVE_CONFIG as _CONFIG
from specwatch.vllm_cli.wrappers import VARIABLE_MARK

_SIZES = (
    "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size",
    "--gpu-memory-utilization", "--max-model-len", "--max-num-seqs", "--quantization",
    "--kv-cache-dtype", "--dtype",
)  # fmt: skip
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
    given = read_command(command).with_file(read_file)
    values = {flag: given.value(flag) for flag in _SIZES}
    sizes = {flag: value for flag, value in values.items() if value and VARIABLE_MARK not in value}
    speculation, findings = _speculation(given.speculation)
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


def _speculation(options: Sequence[Option]) -> tuple[dict[str, Any], list[Finding]]:
    """The keys of the configuration as vLLM puts them together, and what is wrong with that."""
    given = speculation_of(options)
    findings: list[Finding] = []
    if given.dotted and given.whole:
        findings.append(_replaced(given.whole, given.dotted))
    findings += (
        _twice(flag, key)
        for flag, key in SHORTHANDS.items()
        if key in given.shorthands and key in (given.dotted or given.whole)
    )
    if given.old:
        findings.extend(_gone(options))
    elif not given.config and any(o.is_set and o.is_of(_CONFIG) for o in options):
        findings.append(_empty())
    return given.config, findings


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


def _gone(options: Sequence[Option]) -> list[Finding]:
    names = sorted({o.flag.name for o in options if o.flag is not None and o.flag.is_old})
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
    acceptance = "--spec-decoding-acceptance-method"
    method = next((option.value for option in options if option.is_of(acceptance)), None)
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
    return None if word is None or VARIABLE_MARK in word else word


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
