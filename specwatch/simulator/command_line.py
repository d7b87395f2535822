"""From the flags of ``vllm serve`` to the settings of a simulated vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from specwatch.errors import ConfigError
from specwatch.simulator.acceptance import SimulatedAcceptance
from specwatch.simulator.costs import SimulatedCosts
from specwatch.simulator.flags import SimulatedFlags, read_flags
from specwatch.simulator.profile import CONSTANT, SimulatedProfile, pairs
from specwatch.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.simulator.workload import SimulatedTraffic

T = TypeVar("T")

_CONTEXT = 4096
_UNITS = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2, "g": 1000**3, "G": 1024**3}


def parse_flags(arguments: Sequence[str]) -> SimulatedSettings:
    """Settings from the words after ``vllm serve``.

    ConfigError says which flag cannot be understood, and what was expected.
    """
    flags = read_flags(arguments)
    engines = _number(flags, "data-parallel-size", int, 1)
    # vLLM starts as many API servers as engines by default, and then shares one page.
    servers = _number(flags, "api-server-count", int, engines)
    context = _number(flags, "max-model-len", _context, _CONTEXT)
    return SimulatedSettings(
        model=flags.last("model") or "simulated",
        served_model_names=tuple(flags.values.get("served-model-name", ())),
        host=flags.last("host") or "127.0.0.1",
        port=_number(flags, "port", int, 8000),
        speculation=_speculation(flags),
        max_num_seqs=_number(flags, "max-num-seqs", int, 64),
        max_num_batched_tokens=_number(flags, "max-num-batched-tokens", _count, 2048),
        max_model_len=context,
        max_logprobs=_number(flags, "max-logprobs", int, 20),
        block_size=_number(flags, "block-size", int, 16),
        kv_cache_tokens=_number(
            flags, "simulated-kv-cache-tokens", _count, max(131072, 2 * context)
        ),
        num_gpu_blocks=_number(flags, "num-gpu-blocks-override", int, None),
        engines=engines,
        engine_version=flags.last("simulated-engine-version") or "0.32.0",
        multiprocess=flags.given("simulated-multiprocess") or servers > 1,
        record=flags.last("per-request-spec-decode-metrics") or "none",
        timings=flags.given("enable-per-request-metrics"),
        force_usage=flags.given("enable-force-include-usage"),
        middleware=tuple(flags.values.get("middleware", ())),
        api_keys=tuple(flags.values.get("api-key", ())),
        default_temperature=_default_temperature(flags),
        seed=_number(flags, "simulated-seed", int, _number(flags, "seed", int, 0)),
        time_scale=_number(flags, "simulated-time-scale", float, 1.0),
        startup=_number(flags, "simulated-startup", float, 0.0),
        traffic=_traffic(flags),
        acceptance=SimulatedAcceptance(
            scale=_number(flags, "simulated-acceptance-scale", float, 1.0)
        ),
        costs=_costs(flags),
        drift=_profile(flags, "simulated-drift"),
    )


def _traffic(flags: SimulatedFlags) -> SimulatedTraffic:
    traffic = SimulatedTraffic(
        rate=_number(flags, "simulated-rate", float, 0.0),
        rate_profile=_profile(flags, "simulated-rate-profile"),
        concurrency=_number(flags, "simulated-concurrency", int, 0),
        prompt_tokens=_number(flags, "simulated-prompt-tokens", float, 200.0),
        output_tokens=_number(flags, "simulated-output-tokens", float, 120.0),
    )
    temperatures = flags.last("simulated-temperatures")
    if temperatures is None:
        return traffic
    return replace(traffic, temperatures=pairs("--simulated-temperatures", temperatures))


def _costs(flags: SimulatedFlags) -> SimulatedCosts:
    costs = SimulatedCosts()
    base = _number(flags, "simulated-step-time", float, costs.base)
    if base <= 0:
        raise ConfigError(f"--simulated-step-time {base}: expected seconds above zero")
    costs = costs.scaled(base / costs.base)
    share = _number(flags, "simulated-draft-cost", float, costs.draft_base / costs.base)
    if share < 0:
        raise ConfigError(f"--simulated-draft-cost {share}: expected a share of a target step")
    return replace(
        costs,
        draft_base=costs.base * share,
        free_tokens=_number(flags, "simulated-free-tokens", int, costs.free_tokens),
    )


def _profile(flags: SimulatedFlags, name: str) -> SimulatedProfile:
    text = flags.last(name)
    return CONSTANT if text is None else SimulatedProfile(pairs(f"--{name}", text))


def _default_temperature(flags: SimulatedFlags) -> float:
    text = flags.last("override-generation-config")
    value = _json("--override-generation-config", text).get("temperature", 1.0) if text else 1.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(
            f"--override-generation-config: temperature is {value!r}, expected a number"
        )
    return float(value)


def _speculation(flags: SimulatedFlags) -> SimulatedSpeculation | None:
    text = flags.last("speculative-config")
    # Dotted keys replace a whole --speculative-config, as in vLLM.
    config = dict(flags.dotted) or (_json("--speculative-config", text) if text else {})
    for key, names in (
        ("method", ("spec-method",)),
        ("model", ("spec-model", "speculative-model")),
        ("num_speculative_tokens", ("spec-tokens", "num-speculative-tokens")),
    ):
        for name in names:
            if flags.given(name):
                config[key] = flags.last(name)
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
        return SimulatedSpeculation(k=int(k), method=str(method), model=model and str(model))
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


def _number(flags: SimulatedFlags, name: str, read: Callable[[str], T], default: T | Any) -> T:
    text = flags.last(name)
    if text is None:
        return default
    try:
        return read(text)
    except ValueError:
        raise ConfigError(f"--{name}: found {text!r}, expected a number") from None


def _context(text: str) -> int:
    return _CONTEXT if text in ("auto", "-1") else _count(text)


def _count(text: str) -> int:
    """A number of tokens, such as 4096, 32k (thousands) or 32K (of 1024)."""
    if text and text[-1] in _UNITS:
        return int(float(text[:-1]) * _UNITS[text[-1]])
    return int(text)
