"""From the flags of ``vllm serve`` to the settings of a simulated vLLM.

Own flags start with ``--simulated-``. Flags of vLLM that make no difference here are accepted,
reported as ignored, and cost nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import structlog

from specwatch.errors import CannotStrip, ConfigError
from specwatch.simulator.acceptance import SimulatedAcceptance
from specwatch.simulator.costs import SimulatedCosts
from specwatch.simulator.profile import CONSTANT, SimulatedProfile, pairs
from specwatch.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.simulator.workload import SimulatedTraffic
from specwatch.vllm_cli import config_file
from specwatch.vllm_cli.command import Arguments, read_arguments, speculation_of
from specwatch.vllm_cli.flags import FLAGS, by_spelling, flags_of

T = TypeVar("T")

_log = structlog.get_logger(__name__)

_CONTEXT = 4096
_UNITS = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2, "g": 1000**3, "G": 1024**3}

_OF_VLLM = (
    "model served-model-name host port max-num-seqs max-num-batched-tokens max-model-len "
    "max-logprobs block-size num-gpu-blocks-override data-parallel-size api-server-count "
    "speculative-config spec-method spec-model spec-tokens speculative-model "
    "num-speculative-tokens per-request-spec-decode-metrics enable-per-request-metrics "
    "enable-force-include-usage middleware api-key override-generation-config seed config"
)
"""Flags of vLLM that make a difference here, without dashes."""
_OWN = by_spelling(
    *flags_of(
        "1",
        "simulated-seed simulated-rate simulated-rate-profile simulated-concurrency "
        "simulated-temperatures simulated-prompt-tokens simulated-output-tokens "
        "simulated-acceptance-scale simulated-drift simulated-step-time simulated-draft-cost "
        "simulated-free-tokens simulated-kv-cache-tokens simulated-time-scale simulated-startup "
        "simulated-engine-version",
    ),
    *flags_of("0", "simulated-multiprocess"),
)


def _read_flags(words: Sequence[str]) -> Arguments:
    """Read the words after ``vllm serve``; ConfigError says what cannot be understood."""
    table = {**FLAGS, **_OWN}
    used = {*(f"--{name}" for name in _OF_VLLM.split()), *_OWN}
    try:
        own = read_arguments(words, flags=table)
        file = config_file.find(words, lambda path: Path(path).read_text(encoding="utf-8"))
        merged = own if file is None else read_arguments(file.merged(words)[0], flags=table)
    except CannotStrip as error:
        raise ConfigError(str(error)) from None
    if len(own.positionals) > 1:
        unexpected = own.words[own.positionals[1]]
        raise ConfigError(f"unexpected argument {unexpected!r}: the model is given already")
    for option in merged.options:
        spelling = option.spelling + (f".{option.key}" if option.key else "")
        if option.flag is None or option.flag.name not in used:
            _log.warning("simulated_flag_ignored", flag=spelling)
        elif option.flag.nargs != "0" and not option.values:
            following = "".join(merged.words[option.stop : option.stop + 1]) or "none"
            raise ConfigError(f"{spelling}: expected a value after it, found {following}")
    return replace(merged, model=own.model or merged.model)


def parse_flags(arguments: Sequence[str]) -> SimulatedSettings:
    """Settings from the words after ``vllm serve``.

    ConfigError says which flag cannot be understood, and what was expected.
    """
    flags = _read_flags(arguments)
    engines = _number(flags, "--data-parallel-size", int, 1)
    # vLLM starts as many API servers as engines by default, and then shares one page.
    servers = _number(flags, "--api-server-count", int, engines)
    context = _number(flags, "--max-model-len", _context, _CONTEXT)
    return SimulatedSettings(
        model=flags.model or "simulated",
        served_model_names=_several(flags, "--served-model-name"),
        host=flags.value("--host") or "127.0.0.1",
        port=_number(flags, "--port", int, 8000),
        speculation=_speculation(flags),
        max_num_seqs=_number(flags, "--max-num-seqs", int, 64),
        max_num_batched_tokens=_number(flags, "--max-num-batched-tokens", _count, 2048),
        max_model_len=context,
        max_logprobs=_number(flags, "--max-logprobs", int, 20),
        block_size=_number(flags, "--block-size", int, 16),
        kv_cache_tokens=_number(
            flags, "--simulated-kv-cache-tokens", _count, max(131072, 2 * context)
        ),
        num_gpu_blocks=_number(flags, "--num-gpu-blocks-override", int, None),
        engines=engines,
        engine_version=flags.value("--simulated-engine-version") or "0.32.0",
        multiprocess=bool(flags.given("--simulated-multiprocess")) or servers > 1,
        record=flags.value("--per-request-spec-decode-metrics") or "none",
        timings=bool(flags.given("--enable-per-request-metrics")),
        force_usage=bool(flags.given("--enable-force-include-usage")),
        middleware=tuple(o.value or "" for o in flags.given("--middleware")),
        api_keys=_several(flags, "--api-key"),
        default_temperature=_default_temperature(flags),
        seed=_number(flags, "--simulated-seed", int, _number(flags, "--seed", int, 0)),
        time_scale=_number(flags, "--simulated-time-scale", float, 1.0),
        startup=_number(flags, "--simulated-startup", float, 0.0),
        traffic=_traffic(flags),
        acceptance=SimulatedAcceptance(
            scale=_number(flags, "--simulated-acceptance-scale", float, 1.0)
        ),
        costs=_costs(flags),
        drift=_profile(flags, "--simulated-drift"),
    )


def _traffic(flags: Arguments) -> SimulatedTraffic:
    traffic = SimulatedTraffic(
        rate=_number(flags, "--simulated-rate", float, 0.0),
        rate_profile=_profile(flags, "--simulated-rate-profile"),
        concurrency=_number(flags, "--simulated-concurrency", int, 0),
        prompt_tokens=_number(flags, "--simulated-prompt-tokens", float, 200.0),
        output_tokens=_number(flags, "--simulated-output-tokens", float, 120.0),
    )
    temperatures = flags.value("--simulated-temperatures")
    if temperatures is None:
        return traffic
    return replace(traffic, temperatures=pairs("--simulated-temperatures", temperatures))


def _costs(flags: Arguments) -> SimulatedCosts:
    costs = SimulatedCosts()
    base = _number(flags, "--simulated-step-time", float, costs.base)
    if base <= 0:
        raise ConfigError(f"--simulated-step-time {base}: expected seconds above zero")
    costs = costs.scaled(base / costs.base)
    share = _number(flags, "--simulated-draft-cost", float, costs.draft_base / costs.base)
    if share < 0:
        raise ConfigError(f"--simulated-draft-cost {share}: expected a share of a target step")
    return replace(
        costs,
        draft_base=costs.base * share,
        free_tokens=_number(flags, "--simulated-free-tokens", int, costs.free_tokens),
    )


def _profile(flags: Arguments, name: str) -> SimulatedProfile:
    text = flags.value(name)
    return CONSTANT if text is None else SimulatedProfile(pairs(name, text))


def _default_temperature(flags: Arguments) -> float:
    text = flags.value("--override-generation-config")
    value = _json("--override-generation-config", text).get("temperature", 1.0) if text else 1.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(
            f"--override-generation-config: temperature is {value!r}, expected a number"
        )
    return float(value)


def _speculation(flags: Arguments) -> SimulatedSpeculation | None:
    config = speculation_of(flags.options).config
    if not config:
        return None
    model = config.get("model")
    method = config.get("method") or ("ngram" if model in (None, "[ngram]") else "draft_model")
    k = config.get("num_speculative_tokens", 1 if "mtp" in str(method) else None)
    if k is None:
        raise ConfigError(
            "speculative configuration without num_speculative_tokens: say how many tokens to"
            ' draft, for example --speculative-config \'{"method":"draft_model","model":"d",'
            '"num_speculative_tokens":4}\''
        )
    try:
        return SimulatedSpeculation(int(k), str(method), None if model is None else str(model))
    except ValueError:
        raise ConfigError(f"num_speculative_tokens is {k!r}: expected a whole number") from None


def _json(flag: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: expected a JSON object, found {text!r}: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{flag}: expected a JSON object, found {text!r}")
    return value


def _several(flags: Arguments, name: str) -> tuple[str, ...]:
    """The values of the last of its kind."""
    return next((option.values for option in reversed(flags.given(name))), ())


def _number(flags: Arguments, name: str, read: Callable[[str], T], default: T | Any) -> T:
    text = flags.value(name)
    if text is None:
        return default
    try:
        return read(text)
    except ValueError:
        raise ConfigError(f"{name}: found {text!r}, expected a number") from None


def _context(text: str) -> int:
    return _CONTEXT if text in ("auto", "-1") else _count(text)


def _count(text: str) -> int:
    """A number of tokens, such as 4096, 32k (thousands) or 32K (of 1024)."""
    if text and text[-1] in _UNITS:
        return int(float(text[:-1]) * _UNITS[text[-1]])
    return int(text)
