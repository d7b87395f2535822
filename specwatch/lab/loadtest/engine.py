"""The measured model of a server, from its metrics page, and whether two can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specwatch.domain.baseline import BaselineKey
from specwatch.domain.model import ALL, Environment, Mode, Series, Tally
from specwatch.engines import sample_names
from specwatch.engines.base import Engine
from specwatch.engines.sample_names import ENGINE_TITLES, mode_of
from specwatch.engines.vllm import VLLM
from specwatch.errors import ConfigError, PageError
from specwatch.scrape import switch, tally


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """One model of one server, as its metrics page shows it."""

    series_name: str
    """The model's label on the page; may be empty."""
    model_name: str
    mode: Mode
    environment: Environment
    tapped: bool = False
    busy: float = 0.0
    """Requests that ran or waited when the page was read."""
    engine: Engine = VLLM

    def series(self, samples: Mapping[Series, float]) -> Mapping[Series, float]:
        """The samples of this model."""
        return tally.parts_of(samples).models.get(self.series_name, {})

    def baseline_key(self, target: str) -> BaselineKey:
        """The key of a baseline that is measured on it."""
        version, configuration = self.environment.engine_version, self.environment.configuration
        return BaselineKey(target, self.model_name, version, configuration)

    def busy_on(self, samples: Mapping[Series, float]) -> float:
        """Requests that run or wait, by a page."""
        gauges = tally.sampled(self.series(samples))
        return (gauges.running or 0.0) + (gauges.waiting or 0.0)


def engine_of(
    samples: Mapping[Series, float],
    version: str | None,
    served: Sequence[str],
    *,
    drafting: bool | None = None,
    model: str | None = None,
    where: str = "the server",
) -> MeasuredModel:
    """The model to measure: the one called ``model``, or the only one.

    ``version``, ``served`` and ``drafting`` come from the engine's other endpoints. Raises
    ConfigError, beginning with ``where``, for a page without an engine's samples, or without that
    model.
    """
    parts = tally.parts_of(samples)
    if not parts.models:
        raise ConfigError(
            f"{where} has a metrics page, but not of {ENGINE_TITLES}; give the URL of the engine"
            " itself"
        )
    setting = switch.setting_of(samples)
    if setting is not None and setting.ordered:
        ordered = "a schedule" if setting.schedule else f"{setting.draft_tokens} draft tokens"
        raise ConfigError(
            f"{where}: its switch is at {ordered} by an order; end that with `specwatch switch"
            " --launch`, or `specwatch experiment stop` if an experiment gives orders, and measure"
            " what it was launched with"
        )
    names = {name or (served[0] if served else ""): name for name in parts.models}
    if model is None and len(names) > 1:
        raise ConfigError(f"{where} serves {', '.join(sorted(names))}; choose one with --model")
    chosen = next(iter(names)) if model is None else model
    if chosen not in names:
        raise ConfigError(
            f"{where} does not serve {chosen}; it serves {', '.join(sorted(names)) or 'no model'}"
        )
    measured = MeasuredModel(
        names[chosen],
        chosen,
        mode_of(parts.models[names[chosen]], drafting),
        Environment(version, tally.fingerprint_of(samples)),
        tapped=any(series.segment != ALL for series in parts.tap),
        engine=sample_names.engine_of(parts.models[names[chosen]]),
    )
    return replace(measured, busy=measured.busy_on(samples))


def counted_of(samples: Mapping[Series, float], engine: MeasuredModel) -> Tally:
    """Counts of a model since the engine started; empty if they cannot be read."""
    try:
        return tally.tally_of(engine.series(samples), [])
    except PageError:
        return Tally()


def check(
    off: MeasuredModel,
    on: MeasuredModel | None = None,
    *,
    options: tuple[str, str] = ("--off", "--on"),
) -> list[str]:
    """Raise ConfigError for servers that cannot be compared; return doubts, as words.

    ``options`` name the servers in the order of the arguments.
    """
    of_off, of_on = options
    for option, engine in zip(options, (off, on), strict=True):
        if engine is not None and engine.mode is Mode.UNKNOWN:
            raise ConfigError(
                f"{option}: it is not known whether this server speculates: no draft was counted"
                f" for {engine.model_name}, and neither /slots of llama-server nor /server_info"
                " of SGLang shows it; start llama-server without --no-slots, and give the API key"
            )
    if off.mode is not Mode.OFF:
        raise ConfigError(
            f"{of_off}: this server speculates for {off.model_name}; start one without"
            f" {off.engine.speculation}"
        )
    if on is None:
        return []
    if on.mode is not Mode.ON:
        raise ConfigError(
            f"{of_on}: this server does not speculate for {on.model_name}; start it with"
            f" {on.engine.speculation}"
        )
    if on.model_name != off.model_name:
        raise ConfigError(
            f"{of_off} serves {off.model_name} and {of_on} {on.model_name}: compare the same model"
        )
    doubts = []
    for what, first, second in (
        ("engine version", off.environment.engine_version, on.environment.engine_version),
        ("configuration", off.environment.configuration, on.environment.configuration),
    ):
        if first is not None and second is not None and first != second:
            doubts.append(f"the servers differ in their {what} ({first} off, {second} on)")
    return doubts
