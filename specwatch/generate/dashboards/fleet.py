"""The fleet: a row a target and model, the greatest loss first, and what became of them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specwatch.generate.dashboards import frame, variables
from specwatch.generate.dashboards.annotations import of_guard
from specwatch.generate.dashboards.layout import Band
from specwatch.generate.dashboards.links import FLEET, GUARD, OVERVIEW, TEMPERATURE, to_board
from specwatch.generate.dashboards.once import (
    FINDING,
    LOOKED,
    MODEL,
    TARGET,
    last_look,
    least,
    most,
)
from specwatch.generate.dashboards.panels import (
    Column,
    Panel,
    Query,
    ShownAs,
    stat,
    state_timeline,
    table,
    timeseries,
)
from specwatch.generate.dashboards.phases import GUARD_STATES, guard_state

_TARGETS = 'target=~"$target"'
_ALL = f'{_TARGETS}, temperature="all"'
_ENABLED = most(f"specwatch_speculation_enabled{{{_TARGETS}}}", MODEL)
_VERDICTS = most(f"specwatch_rule_verdict{{{_TARGETS}}}", FINDING)
_ACCEPTANCE = least(f"specwatch_acceptance_ratio{{{_ALL}}}", MODEL)
_REQUESTS = most(f"specwatch_requests_per_second{{{_ALL}}}", MODEL)
_LEGEND = "{{target}} {{model_name}}"
_TIMES = "suffix:×"
_NONE = ((None, "green"), (1.0, "red"))
_NONE_ORANGE = ((None, "green"), (1.0, "orange"))
_BREAK_EVEN = ((None, "transparent"), (1.0, "red"))
_UP = (ShownAs(1, "up", "green"), ShownAs(0, "down", "red"), ShownAs(None, "–", "text"))
_SPECULATION = (ShownAs(1, "on", "green"), ShownAs(0, "off", "blue"))


def build(links: Sequence[Any]) -> str:
    """JSON of the dashboard."""
    return frame.dashboard(
        FLEET.uid,
        FLEET.title,
        "Every server that is watched, the one that speculation costs most first. A target leads"
        " to its overview, a model to its temperatures, a guard's state to the guard.",
        bands=[*_now(), *_over_time()],
        variables=[variables.data_source(), variables.target(multi=True)],
        annotations=of_guard(_TARGETS),
        links=links,
        since="now-24h",
    )


def _now() -> list[Band]:
    return [
        Band(
            None,
            4,
            [
                (4, _down()),
                (4, _losing()),
                (4, _unmeasured()),
                (3, _breaches()),
                (3, _off()),
                (3, _held()),
                (3, _last_look()),
            ],
        ),
        Band(None, 12, [(24, _servers())]),
    ]


def _over_time() -> list[Band]:
    return [
        Band("Over time", 9, [(12, _speedups()), (12, _breaches_by_target())]),
        Band(None, 8, [(12, _failures()), (12, _guards())]),
        Band(None, 8, [(12, _throughput()), (12, _acceptance())]),
    ]


def _count(title: str, description: str, expr: str, thresholds: Any) -> Panel:
    return stat(
        title,
        description,
        [Query(expr, title)],
        unit="none",
        thresholds=thresholds,
        text_mode="value",
        color_mode="background",
    )


def _down() -> Panel:
    return _count(
        "Targets down",
        "Targets whose last scrape failed. The table says which, the lines below since when.",
        f"sum({least(f'specwatch_target_up{{{_TARGETS}}}', TARGET)} == bool 0)",
        _NONE,
    )


def _losing() -> Panel:
    return _count(
        "Lose for certain",
        "Models whose measured speedup is below 1 with the whole of its 95 % interval. Without any"
        " baseline there is nothing to count.",
        f"sum({most(f'specwatch_speedup_ratio_upper{{{_ALL}}}', MODEL)} < bool 1)",
        _NONE,
    )


def _unmeasured() -> Panel:
    measured = least(f"specwatch_speedup_measured{{{_TARGETS}}}", MODEL)
    return _count(
        "Not measured",
        "Models with speculation on whose speedup is not measured, for lack of a baseline at their"
        " load or of traffic: whether they lose is not known.",
        f"sum((1 - {measured}) * on ({MODEL}) {_ENABLED})",
        _NONE_ORANGE,
    )


def _breaches() -> Panel:
    return _count(
        "Rules in breach",
        "Confirmed breaches of all rules on all targets.",
        f"sum({_VERDICTS} == bool 1)",
        _NONE,
    )


def _off() -> Panel:
    return _count(
        "Speculation off",
        "Models that are served without speculation now, whoever switched it off.",
        f"sum(1 - {_ENABLED})",
        ((None, "green"), (1.0, "blue")),
    )


def _held() -> Panel:
    held = most(f'specwatch_guard_state{{{_TARGETS}, state="held"}}', TARGET)
    return _count(
        "Guards held",
        "Guards that had a failure and do nothing until a person resumes them.",
        f"sum({held})",
        _NONE,
    )


def _last_look() -> Panel:
    return stat(
        "Last look",
        "Time since specwatch last read the target that it has not read for longest, down or not."
        " When specwatch is gone this goes on for a day and the rest says no data. A target that is"
        " no longer configured counts for a day, too.",
        [Query(f"max({last_look(_TARGETS)})", "last look")],
        unit="s",
        thresholds=LOOKED,
        text_mode="value",
        color_mode="background",
    )


def _by_model(expr: str) -> str:
    """What is known of a target only, repeated for each of its models; or once, if none is known.

    A target that never answered has no models, and must not be missing for it.
    """
    return most(f"0 * {_ENABLED} + on (target) group_left () {expr} or on (target) {expr}", MODEL)


def _latency(metric: str) -> str:
    p99 = f'metric="{metric}", quantile="0.99"'
    return most(f"specwatch_latency_seconds{{{_ALL}, {p99}}}", MODEL)


def _servers() -> Panel:
    speedup = least(f"specwatch_speedup_ratio{{{_ALL}}}", MODEL)
    return table(
        "Servers by loss",
        "Loss is 1 / speedup - 1: the time that a token takes more than it would without"
        " speculation, negative where it takes less. Measured ones come first, the greatest loss"
        " at the top; where nothing is measured it is empty. Rates and latencies are of the last"
        " five minutes.",
        [
            Query(f"1 / {speedup} - 1"),
            Query(speedup),
            Query(_ENABLED),
            Query(_ACCEPTANCE),
            Query(_by_model(guard_state(_TARGETS))),
            Query(_REQUESTS),
            Query(_latency("ttft")),
            Query(_latency("tpot")),
            Query(most(f"specwatch_kv_cache_usage_ratio{{{_TARGETS}}}", MODEL)),
            Query(f"sum by ({MODEL}) ({_VERDICTS} == bool 1)"),
            Query(_by_model(least(f"specwatch_target_up{{{_TARGETS}}}", TARGET))),
        ],
        columns=_columns(),
        sort_by="Loss",
        sort_descending=True,
    )


def _columns() -> list[Column]:
    of_row = {"target": "Target", "model_name": "Model"}
    return [
        Column("Target", "target", link=to_board(OVERVIEW, **of_row)),
        Column("Model", "model_name", link=to_board(TEMPERATURE, **of_row)),
        Column("Loss", "A", "percentunit", ((None, "green"), (0.0, "red")), decimals=1),
        Column(
            "Speedup", "B", _TIMES, ((None, "red"), (1.0, "yellow"), (1.3, "green")), decimals=2
        ),
        Column("Speculation", "C", "none", mappings=_SPECULATION),
        Column("Acceptance", "D", "percentunit", ((None, "red"), (0.5, "green")), decimals=1),
        Column("Guard", "E", "none", mappings=GUARD_STATES, link=to_board(GUARD, target="Target")),
        Column("Requests/s", "F", "none", decimals=2),
        Column("TTFT P99", "G", "s"),
        Column("TPOT P99", "H", "s"),
        Column("KV cache", "I", "percentunit", ((None, "text"), (0.9, "red")), decimals=0),
        Column("Rules in breach", "J", "none", _NONE),
        Column("Scrape", "K", "none", mappings=_UP),
    ]


def _speedups() -> Panel:
    return timeseries(
        "Speedup by target",
        "Measured over the last hour against the baseline at equal load. Below the line at 1"
        " speculation loses. Targets without a baseline have no line.",
        [Query(least(f"specwatch_speedup_ratio{{{_ALL}}}", MODEL), _LEGEND)],
        unit=_TIMES,
        thresholds=_BREAK_EVEN,
        minimum=0,
        decimals=2,
        legend_values=("lastNotNull", "min"),
    )


def _breaches_by_target() -> Panel:
    return timeseries(
        "Breaches by target",
        "Rules in confirmed breach, each temperature of a model for itself.",
        [Query(f"sum by (target) ({_VERDICTS} == bool 1)", "{{target}}")],
        unit="none",
        thresholds=((None, "transparent"), (1.0, "red")),
        minimum=0,
        decimals=0,
        stack=True,
        fill=30,
        legend_values=("lastNotNull", "max"),
    )


def _failures() -> Panel:
    counted = f"{{{_TARGETS}}}[$__rate_interval]"
    daemon = "target, instance, job"
    every = f"sum by ({daemon}) (rate(specwatch_scrapes_total{counted}))"
    failed = f"sum by ({daemon}) (rate(specwatch_scrape_failures_total{counted}))"
    return timeseries(
        "Failed scrapes",
        "Share of the scrapes of each target that failed, of the daemon that fares worst. Above the"
        " line most of its minutes are without data. The guard's dashboard has the reasons.",
        [
            Query(most(f"({failed} or 0 * {every}) / ({every} > 0)", TARGET), "{{target}}"),
        ],
        unit="percentunit",
        thresholds=((None, "transparent"), (0.5, "red")),
        minimum=0,
        maximum=1,
        legend_values=("lastNotNull", "max"),
    )


def _guards() -> Panel:
    return state_timeline(
        "Guards",
        "State of the guard of each target; a target whose guard is not configured has no band.",
        [Query(guard_state(_TARGETS), "{{target}}")],
        mappings=GUARD_STATES,
    )


def _throughput() -> Panel:
    return timeseries(
        "Requests by target",
        "Finished requests per second over the last five minutes.",
        [Query(_REQUESTS, _LEGEND)],
        unit="reqps",
        minimum=0,
        stack=True,
        fill=30,
    )


def _acceptance() -> Panel:
    return timeseries(
        "Acceptance by target",
        "Accepted tokens / draft tokens over the last five minutes. The line at 0.5 is the field's"
        " rule of thumb; where a speedup is measured, that decides.",
        [Query(_ACCEPTANCE, _LEGEND)],
        unit="percentunit",
        thresholds=((None, "transparent"), (0.5, "orange")),
        minimum=0,
        maximum=1,
    )
