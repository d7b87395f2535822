"""From the flags of ``vllm serve`` to the settings of a simulated vLLM.

Own flags start with ``--simulated-``. Flags of vLLM that make no difference here are accepted,
reported as ignored, and cost nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import structlog

from specwatch.errors import CannotStrip, ConfigError
from specwatch.lab.simulator.acceptance import SimulatedAcceptance
from specwatch.lab.simulator.costs import SimulatedCosts
from specwatch.lab.simulator.settings import (
    ADAPTIVE,
    SCHEDULE,
    SimulatedSettings,
    SimulatedSpeculation,
)
from specwatch.lab.simulator.workload import PAIRS, SimulatedProfile, SimulatedTraffic, pairs
from specwatch.vllm_cli import config_file
from specwatch.vllm_cli.command import Arguments, read_arguments, speculation_of
from specwatch.vllm_cli.flags import FLAGS, by_spelling, flags_of, token_count
from specwatch_tap import SCHEDULER
from specwatch_tap import settings as tap_settings
from specwatch_tap.scheduler import DATA_PARALLEL

_log = structlog.get_logger(__name__)

_DEFAULT = SimulatedSettings()
_Reader = Callable[[str], Any]
_Schedule = Annotated[tuple[tuple[int, int, int], ...], msgspec.Meta(min_length=1)] | None


def _context(text: str) -> int:
    return _DEFAULT.max_model_len if text in ("auto", "-1") else token_count(text)


def _profile(text: str) -> SimulatedProfile:
    return SimulatedProfile(pairs(text))


_SETTINGS: Mapping[str, tuple[str, _Reader]] = {
    "--host": ("host", str),
    "--port": ("port", int),
    "--max-num-seqs": ("max_num_seqs", int),
    "--max-num-batched-tokens": ("max_num_batched_tokens", token_count),
    "--max-model-len": ("max_model_len", _context),
    "--max-logprobs": ("max_logprobs", int),
    "--block-size": ("block_size", int),
    "--num-gpu-blocks-override": ("num_gpu_blocks", int),
    "--data-parallel-size": ("engines", int),
    "--per-request-spec-decode-metrics": ("record", str),
    "--seed": ("seed", int),
    "--simulated-seed": ("seed", int),
    "--simulated-kv-cache-tokens": ("kv_cache_tokens", token_count),
    "--simulated-engine-version": ("engine_version", str),
    "--simulated-time-scale": ("time_scale", float),
    "--simulated-startup": ("startup", float),
    "--simulated-drift": ("drift", _profile),
}
"""Flags with one value, and the field of :class:`SimulatedSettings` that each sets."""
_TRAFFIC: Mapping[str, tuple[str, _Reader]] = {
    "--simulated-rate": ("rate", float),
    "--simulated-rate-profile": ("rate_profile", _profile),
    "--simulated-concurrency": ("concurrency", int),
    "--simulated-prompt-tokens": ("prompt_tokens", float),
    "--simulated-output-tokens": ("output_tokens", float),
    "--simulated-temperatures": ("temperatures", pairs),
}
"""The same for :class:`SimulatedTraffic`."""
_OWN = by_spelling(
    *flags_of(
        "1",
        " ".join(
            name.removeprefix("--")
            for name in (
                *_SETTINGS,
                *_TRAFFIC,
                "--simulated-acceptance-scale",
                "--simulated-step-time",
                "--simulated-draft-cost",
                "--simulated-free-tokens",
            )
            if name.startswith("--simulated-")
        ),
    ),
    *flags_of("0", "simulated-multiprocess"),
)
_USED = {
    *_SETTINGS,
    *_OWN,
    "--model",
    "--served-model-name",
    "--api-server-count",
    "--speculative-config",
    "--spec-method",
    "--spec-model",
    "--spec-tokens",
    "--speculative-model",
    "--num-speculative-tokens",
    "--enable-per-request-metrics",
    "--enable-force-include-usage",
    "--middleware",
    "--scheduler-cls",
    "--api-key",
    "--override-generation-config",
    "--config",
}
"""Flags that make a difference here."""


def _read_flags(words: Sequence[str]) -> Arguments:
    """Read the words after ``vllm serve``; ConfigError says what cannot be understood."""
    table = {**FLAGS, **_OWN}
    try:
        command_line = read_arguments(words, flags=table)
        file = config_file.find(words, lambda path: Path(path).read_text(encoding="utf-8"))
        merged = (
            command_line if file is None else read_arguments(file.merged(words)[0], flags=table)
        )
    except CannotStrip as error:
        raise ConfigError(str(error)) from None
    if len(command_line.positionals) > 1:
        unexpected = command_line.words[command_line.positionals[1]]
        raise ConfigError(f"unexpected argument {unexpected!r}: the model is given already")
    for option in merged.options:
        spelling = option.spelling + (f".{option.key}" if option.key else "")
        name = option.flag.name if option.flag is not None else None
        if name not in _USED or (name == "--scheduler-cls" and option.value != SCHEDULER):
            _log.warning("simulated_flag_ignored", flag=spelling)
        elif option.flag is not None and option.flag.nargs != "0" and not option.values:
            following = "".join(merged.words[option.stop : option.stop + 1]) or "none"
            raise ConfigError(f"{spelling}: expected a value after it, found {following}")
    return replace(merged, model=command_line.model or merged.model)


def parse_flags(arguments: Sequence[str]) -> SimulatedSettings:
    """Settings from the words after ``vllm serve``.

    ConfigError says which flag cannot be understood, and what was expected.
    """
    flags = _read_flags(arguments)
    fields = _fields(flags, _SETTINGS)
    # vLLM starts as many API servers as engines by default, and then shares one page.
    servers = _value(flags, "--api-server-count", int, fields.get("engines", 1))
    context = fields.get("max_model_len", _DEFAULT.max_model_len)
    default_cache = max(_DEFAULT.kv_cache_tokens, 2 * context)
    switch_directory = None
    if flags.value("--scheduler-cls") == SCHEDULER:
        try:
            switch_directory = tap_settings.from_environment(os.environ).switch_directory
        except ValueError as error:
            raise ConfigError(str(error)) from None
    settings = SimulatedSettings(
        **{"kv_cache_tokens": default_cache, **fields},
        model=flags.model or "simulated",
        served_model_names=_several(flags, "--served-model-name"),
        speculation=_speculation(flags),
        multiprocess=bool(flags.given("--simulated-multiprocess")) or servers > 1,
        timings=bool(flags.given("--enable-per-request-metrics")),
        force_usage=bool(flags.given("--enable-force-include-usage")),
        middleware=tuple(o.value or "" for o in flags.given("--middleware")),
        switch_directory=switch_directory,
        api_keys=_several(flags, "--api-key"),
        default_temperature=_default_temperature(flags),
        traffic=SimulatedTraffic(**_fields(flags, _TRAFFIC)),
        acceptance=SimulatedAcceptance(
            scale=_value(flags, "--simulated-acceptance-scale", float, 1.0)
        ),
        costs=_costs(flags),
    )
    if settings.engines > 1 and settings.speculation and settings.speculation.schedule:
        _log.warning("simulated_schedule_ignored", detail=DATA_PARALLEL)
    return settings


def _fields(flags: Arguments, table: Mapping[str, tuple[str, _Reader]]) -> dict[str, Any]:
    """The fields that the flags of a table set; of two for one field, the later in the table."""
    return {
        field: _value(flags, name, read, None)
        for name, (field, read) in table.items()
        if flags.value(name) is not None
    }


def _value(flags: Arguments, name: str, read: _Reader, default: Any) -> Any:
    text = flags.value(name)
    if text is None:
        return default
    try:
        return read(text)
    except ValueError:
        expected = PAIRS if read in (pairs, _profile) else "a number"
        raise ConfigError(f"{name}: found {text!r}, expected {expected}") from None


def _several(flags: Arguments, name: str) -> tuple[str, ...]:
    """The values of the last flag of that name."""
    return next((option.values for option in reversed(flags.given(name))), ())


def _costs(flags: Arguments) -> SimulatedCosts:
    costs = SimulatedCosts()
    base = _value(flags, "--simulated-step-time", float, costs.base)
    if base <= 0:
        raise ConfigError(f"--simulated-step-time {base}: expected seconds above zero")
    costs = costs.scaled(base / costs.base)
    share = _value(flags, "--simulated-draft-cost", float, costs.draft_base / costs.base)
    if share < 0:
        raise ConfigError(f"--simulated-draft-cost {share}: expected a share of a target step")
    return replace(
        costs,
        draft_base=costs.base * share,
        free_tokens=_value(flags, "--simulated-free-tokens", int, costs.free_tokens),
    )


def _default_temperature(flags: Arguments) -> float:
    flag = "--override-generation-config"
    text = flags.value(flag) or "{}"
    try:
        config = json.loads(text) or {}
    except ValueError as error:
        raise ConfigError(f"{flag}: expected a JSON object, found {text!r}: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{flag}: expected a JSON object, found {text!r}")
    temperature = config.get("temperature", 1.0)
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise ConfigError(f"{flag}: temperature is {temperature!r}, expected a number")
    return float(temperature)


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
        schedule = msgspec.convert(config.get(SCHEDULE), _Schedule, strict=False) or ()
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{SCHEDULE}: {error}; expected (first, last, draft tokens) entries, for example"
            " [[1, 16, 4], [17, 64, 2]]"
        ) from None
    try:
        return SimulatedSpeculation(
            int(k),
            str(method),
            None if model is None else str(model),
            schedule,
            adaptive=config.get(ADAPTIVE) in (True, "true"),
        )
    except ValueError:
        raise ConfigError(f"num_speculative_tokens is {k!r}: expected a whole number") from None
