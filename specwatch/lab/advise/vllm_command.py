"""A command that starts vLLM, read as vLLM itself reads it.

For its flags see :mod:`specwatch.vllm_cli`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from specwatch.domain.units import quoted
from specwatch.errors import ConfigError
from specwatch.lab.advise.advice import Finding, ServerPlan, whole_number
from specwatch.vllm_cli import ReadFile, read_command
from specwatch.vllm_cli.command import Option, speculation_of
from specwatch.vllm_cli.flags import SPECULATIVE_CONFIG as _CONFIG
from specwatch.vllm_cli.flags import token_count
from specwatch.vllm_cli.wrappers import VARIABLE_MARK

_SPECULATORS = {"peagle": "eagle3", "dflash2": "dflash"}
_MOST_TOKENS = 10**12


def read_vllm_command(command: Sequence[str], *, read_file: ReadFile | None = None) -> ServerPlan:
    """Read a command that starts vLLM; ``read_file`` returns the text of its ``--config`` file.

    Raises CannotStrip if its words cannot be known, and ConfigError if vLLM would refuse a value.
    """
    given = read_command(command).with_file(read_file)
    speculation, findings = _speculation(given.speculation)

    def value(flag: str) -> str | None:
        text = given.value(flag)
        return None if text in (None, "", "auto", "None") or VARIABLE_MARK in text else text

    def count(flag: str) -> int | None:
        return _read(flag, value(flag), _count, "a whole number of at least 1")

    tensor_parallel = count("--tensor-parallel-size") or 1
    pipeline_parallel = count("--pipeline-parallel-size") or 1
    utilization, context = "--gpu-memory-utilization", "--max-model-len"
    draft_format = speculation.get("quantization")
    draft, method = speculation.get("model"), speculation.get("method")
    return ServerPlan(
        from_command=True,
        target=None if given.model is None or VARIABLE_MARK in given.model else given.model,
        draft=None if draft is None else str(draft),
        method=None if method is None else str(method),
        k=whole_number(speculation.get("num_speculative_tokens")),
        speculation=speculation,
        gpus=tensor_parallel * pipeline_parallel,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        data_parallel=count("--data-parallel-size") or 1,
        utilization=_read(utilization, value(utilization), _share, "a number above 0 and up to 1"),
        context=_read(context, value(context), _tokens, "a number of tokens, like 8192, 8k or 8K")
        or None,
        slots=count("--max-num-seqs"),
        dtype=value("--dtype"),
        quantization=value("--quantization"),
        draft_quantization=None if draft_format in (None, "", "auto") else str(draft_format),
        kv_dtype=value("--kv-cache-dtype"),
        findings=tuple(findings),
    )


def _speculation(options: Sequence[Option]) -> tuple[dict[str, Any], list[Finding]]:
    """The configuration as vLLM composes it, and findings on how it is written."""
    given = speculation_of(options)
    findings: list[Finding] = []
    if given.dotted and given.whole:
        lost = sorted(set(given.whole) - set(given.dotted))
        findings.append(
            Finding(
                "method",
                "doubt" if lost else "note",
                f"keys such as {_CONFIG}.{next(iter(given.dotted))} replace the whole {_CONFIG}",
                f"ignored: {', '.join(lost)}" if lost else "the keys repeat all of it",
                "vLLM 0.32, its FlexibleArgumentParser",
                f"write one {_CONFIG} with all keys in it",
            )
        )
    if given.old:
        findings.extend(_old_flags(options))
    return given.config, findings


def _old_flags(options: Sequence[Option]) -> Iterator[Finding]:
    names = sorted({option.flag.name for option in options if option.flag and option.flag.is_old})
    yield Finding(
        "method",
        "doubt",
        f"only vLLM up to 0.8.2 has {', '.join(names)}",
        "they were removed with the V0 engine: vLLM from 0.8.3 on does not start with them",
        "vLLM 0.8.3, its command line",
        f"write {_CONFIG} '{{...}}'; this advice treats them as its keys",
    )
    for option in options:
        if option.is_of("--spec-decoding-acceptance-method") and option.value not in (
            None,
            "rejection_sampler",
        ):
            yield Finding(
                "method",
                "doubt",
                f"the acceptance method {option.value} changes the output of the model",
                "it accepts tokens that are only likely, which trades quality for speed; rejection"
                " sampling keeps the distribution",
                "reported [T]",
                "leave the flag out: rejection_sampler is the default",
            )


_Value = TypeVar("_Value")


def _read(
    flag: str, text: str | None, parse: Callable[[str], _Value | None], expected: str
) -> _Value | None:
    """The value of a flag; None without one. Raises ConfigError for one that cannot be parsed."""
    if text is None:
        return None
    parsed = parse(text)
    if parsed is None:
        raise ConfigError(f"{flag} {quoted(text)} is not {expected}")
    return parsed


def _count(text: str) -> int | None:
    count = whole_number(text)
    return count if count is not None and count >= 1 else None


def _share(text: str) -> float | None:
    try:
        return share if 0 < (share := float(text)) <= 1 else None
    except ValueError:
        return None


def _tokens(text: str) -> int | None:
    """A number of tokens; 0 for -1, which leaves the length to vLLM."""
    if text == "-1":
        return 0
    try:
        tokens = token_count(text)
    except ValueError:
        return None
    return tokens if 0 < tokens <= _MOST_TOKENS else None


def with_own_speculation(plan: ServerPlan, config: Mapping[str, Any], where: str) -> ServerPlan:
    """The plan, with a target of the package *speculators* replaced by its verifier and draft.

    ``config`` is that of the target. As ``maybe_override_with_speculators`` of vLLM 0.32, which
    serves the verifier that such a checkpoint names, with the checkpoint as its draft, regardless
    of the flags. Raises ConfigError if the checkpoint names no verifier.
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
        "method",
        "note",
        f"the model has its own speculation: {name} is served, with it as a draft",
        "vLLM ignores the flags for method and model",
        f"{where}: speculators_config",
    )
    return replace(
        plan,
        target=name,
        draft=plan.target,
        method=_SPECULATORS.get(method, method),
        k=k,
        speculation={**plan.speculation, "num_speculative_tokens": k},
        findings=(*plan.findings, finding),
    )
