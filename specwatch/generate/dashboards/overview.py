"""*Speculation overview*: what on-call looks at first; the top of it says whether it pays now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specwatch.generate.dashboards import frame, variables
from specwatch.generate.dashboards.annotations import of_guard
from specwatch.generate.dashboards.layout import Band
from specwatch.generate.dashboards.links import OVERVIEW
from specwatch.generate.dashboards.once import LOOKED, assumed_line, last_look, least, most
from specwatch.generate.dashboards.overview_latency import latency
from specwatch.generate.dashboards.overview_load import load
from specwatch.generate.dashboards.panels import (
    Column,
    Panel,
    Query,
    ShownAs,
    heatmap,
    stat,
    state_timeline,
    style,
    table,
    timeseries,
)
from specwatch.generate.dashboards.phases import GUARD_STATES, VERDICTS, guard_state

_MODEL = 'target="$target", model_name="$model_name"'
_ALL = f'{_MODEL}, temperature="all"'
_BUCKETS = f'{_MODEL}, temperature=~"$temperature", temperature!="all"'
_TIMES = "suffix:×"
_BREAK_EVEN = ((None, "transparent"), (1.0, "red"))
_PAYS = ((None, "red"), (1.0, "yellow"), (1.3, "green"))
"""Loses, hardly pays, pays: the bounds of the rules net-negative and not-worth-it."""
_ON = (ShownAs(1, "on", "green"), ShownAs(0, "off", "blue"), ShownAs(None, "no data", "gray"))
_MEASURED = (
    ShownAs(1, "measured", "green"),
    ShownAs(0, "assumed", "orange"),
    ShownAs(None, "no data", "gray"),
)
_NONE_IN_BREACH = ((None, "green"), (1.0, "red"))


def build(links: Sequence[Any]) -> str:
    """JSON of the dashboard, with these links to others."""
    return frame.dashboard(
        OVERVIEW.uid,
        OVERVIEW.title,
        "Does speculative decoding pay on this server now, and what is being done about it?",
        bands=[*_now(), *_acceptance(), *latency(_MODEL), *load(_MODEL), *_guard()],
        variables=[
            variables.data_source(),
            variables.target(),
            variables.model_name(
                multi=False, metric='specwatch_speedup_measured{target="$target"}'
            ),
            variables.temperature(),
        ],
        annotations=of_guard(),
        links=links,
        tags=("specwatch", "on-call"),
    )


def _now() -> list[Band]:
    return [
        Band(
            None,
            5,
            [
                (3, _speculation()),
                (6, _speedup_now()),
                (3, _basis()),
                (3, _acceptance_now()),
                (3, _guard_now()),
                (3, _breaches_now()),
                (3, _last_look()),
            ],
        ),
        Band(None, 9, [(12, _speedup()), (12, _acceptance_and_line())]),
        Band(None, 8, [(12, _rules_in_breach()), (12, _rules())]),
    ]


def _acceptance() -> list[Band]:
    panels = [(8, _bucket_heatmap()), (8, _bucket_lines()), (8, _bucket_speedups())]
    return [Band("By temperature", 9, panels)]


def _guard() -> list[Band]:
    return [Band("What the guard did", 6, [(18, _guard_over_time()), (6, _actions_today())])]


def _speculation() -> Panel:
    return stat(
        "Speculation",
        "Whether the engine serves the model with speculation. Blue is off: then there is nothing"
        " to win or lose, and the panels of acceptance stay empty.",
        [Query(most(f"specwatch_speculation_enabled{{{_MODEL}}}"), "speculation")],
        unit="none",
        mappings=_ON,
        text_mode="value",
        color_mode="background",
    )


def _speedup_now() -> Panel:
    return stat(
        "Does it pay now?",
        "Speedup over the last hour against the baseline at equal load, between the ends of its"
        " 95 % interval. Below 1 speculation loses (red), below 1.3 it hardly pays (yellow). It"
        " loses for certain when the upper end is red. Where nothing is measured, only the speedup"
        " is shown that the acceptance and an assumed draft cost suggest.",
        [
            Query(least(f"specwatch_speedup_ratio_lower{{{_ALL}}}"), "at least"),
            Query(least(f"specwatch_speedup_ratio{{{_ALL}}}"), "speedup"),
            Query(most(f"specwatch_speedup_ratio_upper{{{_ALL}}}"), "at most"),
            Query(least(f"specwatch_assumed_speedup_ratio{{{_MODEL}}}"), "assumed"),
        ],
        unit=_TIMES,
        thresholds=_PAYS,
        decimals=2,
        text_mode="value_and_name",
    )


def _basis() -> Panel:
    return stat(
        "Basis",
        "Whether the speedup is measured against a baseline, that is, minutes of the same server"
        " without speculation. Assumed: calibrate, or wait for the guard to have it off once.",
        [Query(least(f"specwatch_speedup_measured{{{_MODEL}}}"), "speedup")],
        unit="none",
        mappings=_MEASURED,
        text_mode="value",
        color_mode="background",
    )


def _acceptance_now() -> Panel:
    return stat(
        "Acceptance",
        "Accepted tokens / draft tokens of all requests of the last minutes. Below 0.5 is rarely"
        " worth it; what matters is the break-even line, which depends on the load.",
        [Query(least(f"specwatch_acceptance_ratio{{{_ALL}}}"), "acceptance")],
        unit="percentunit",
        thresholds=((None, "red"), (0.5, "yellow"), (0.7, "green")),
        decimals=1,
    )


def _guard_now() -> Panel:
    return stat(
        "Guard",
        "State of the guard of the target. Suspect and confirmed: a rule that disables is in"
        " breach. Disabled: it switched speculation off. Held: something failed and a person must"
        " resume it.",
        [Query(guard_state(), "guard")],
        unit="none",
        mappings=(*GUARD_STATES, ShownAs(None, "no guard", "gray")),
        text_mode="value",
        color_mode="background",
    )


def _breaches_now() -> Panel:
    verdict = most(f"specwatch_rule_verdict{{{_MODEL}}}", "rule, temperature")
    return stat(
        "Breaches",
        "Confirmed breaches of rules, each of one temperature of the model. The table below says"
        " which.",
        [Query(f"sum({verdict} == bool 1)", "rules")],
        unit="none",
        thresholds=_NONE_IN_BREACH,
        text_mode="value",
        color_mode="background",
    )


def _last_look() -> Panel:
    return stat(
        "Last look",
        "Time since specwatch last read the target. Above a minute what is shown here is old; when"
        " specwatch is gone this goes on for a day and the rest says no data.",
        [Query(last_look('target="$target"'), "last look")],
        unit="s",
        thresholds=LOOKED,
        text_mode="value",
        color_mode="background",
    )


def _speedup() -> Panel:
    return timeseries(
        "Speedup and its 95 % interval",
        "Measured over the last hour against the baseline at equal load. Speculation pays above the"
        " red line at 1, and loses for certain where the whole band is below it. Cut off at 4.",
        [
            Query(most(f"specwatch_speedup_ratio_upper{{{_ALL}}}"), "upper end"),
            Query(least(f"specwatch_speedup_ratio{{{_ALL}}}"), "speedup"),
            Query(least(f"specwatch_speedup_ratio_lower{{{_ALL}}}"), "lower end"),
            Query(least(f"specwatch_assumed_speedup_ratio{{{_MODEL}}}"), "assumed"),
        ],
        unit=_TIMES,
        thresholds=_BREAK_EVEN,
        minimum=0,
        maximum=4,
        decimals=2,
        overrides=[
            style("speedup", color="green", width=3),
            style("upper end", color="light-green", width=1, fill_below="lower end"),
            style("lower end", color="light-green", width=1),
            style("assumed", color="orange", dashed=True),
        ],
    )


def _acceptance_and_line() -> Panel:
    return timeseries(
        "Acceptance against the break-even line",
        "Accepted tokens / draft tokens of the last minutes, and for each load, in concurrent"
        " requests, the acceptance below which speculation loses, as measured; above 100 % it"
        " always does. Compare with the line of the load that the server has now. Without a"
        " baseline there is one line, by the assumed draft cost.",
        [
            Query(least(f"specwatch_acceptance_ratio{{{_ALL}}}"), "acceptance"),
            Query(
                most(f"specwatch_break_even_acceptance_ratio{{{_MODEL}}}", "load_bin"),
                "break-even at {{load_bin}}",
            ),
            assumed_line(),
        ],
        unit="percentunit",
        minimum=0,
        overrides=[
            style("acceptance", color="green", width=3),
            style("/break-even.*/", regex=True, dashed=True),
        ],
    )


def _rules_in_breach() -> Panel:
    labels = "rule, temperature"
    breach = f"{most(f'specwatch_rule_verdict{{{_MODEL}}}', labels)} == 1"
    value = most(f"specwatch_rule_value{{{_MODEL}}}", f"{labels}, metric")
    threshold = most(f"specwatch_rule_threshold{{{_MODEL}}}", f"{labels}, metric")
    return table(
        "Rules in breach",
        "Confirmed breaches, with the value that broke the rule and the threshold. Empty is good."
        " `specwatch rules list` shows what each rule demands.",
        [
            Query(breach),
            Query(f"{value} and on ({labels}) ({breach})"),
            Query(f"{threshold} and on ({labels}) ({breach})"),
        ],
        columns=[
            Column("Rule", "rule"),
            Column("Temperature", "temperature", width=110),
            Column("Metric", "metric", width=230),
            Column("Value", "B", unit="none", decimals=3),
            Column("Threshold", "C", unit="none", decimals=3),
        ],
        sort_by="Rule",
    )


def _rules() -> Panel:
    return state_timeline(
        "Rules",
        "The verdict of each rule over time, the worst of all temperatures: red is a confirmed"
        " breach, no data neither fires nor clears.",
        [Query(most(f"specwatch_rule_verdict{{{_MODEL}}}", "rule"), "{{rule}}")],
        mappings=VERDICTS,
    )


def _by_bucket(metric: str) -> list[Query]:
    # In the order of temperatures: Prometheus would sort 0 after those that begin with a bracket.
    zero = f'{_BUCKETS}, temperature="0"'
    others = f'{_BUCKETS}, temperature!="0"'
    return [
        Query(least(f"{metric}{{{each}}}", "temperature"), "{{temperature}}")
        for each in (zero, others)
    ]


def _bucket_heatmap() -> Panel:
    return heatmap(
        "Acceptance by temperature",
        "Accepted tokens / draft tokens of the last minutes: a row for each bucket of temperature,"
        " brighter is better in the dark theme. Without a tap there are no buckets.",
        _by_bucket("specwatch_acceptance_ratio"),
        unit="percentunit",
        minimum=0,
        maximum=1,
    )


def _bucket_lines() -> Panel:
    return timeseries(
        "Acceptance by temperature, as lines",
        "Accepted tokens / draft tokens of the last minutes, by bucket of temperature.",
        _by_bucket("specwatch_acceptance_ratio"),
        unit="percentunit",
        minimum=0,
        maximum=1,
        legend_values=("lastNotNull", "min"),
    )


def _bucket_speedups() -> Panel:
    return timeseries(
        "Speedup by temperature",
        "Measured speedup of the last hour, by bucket of temperature. Buckets below the red line"
        " at 1 lose, even if all together win.",
        _by_bucket("specwatch_speedup_ratio"),
        unit=_TIMES,
        thresholds=_BREAK_EVEN,
        minimum=0,
        decimals=2,
    )


def _guard_over_time() -> Panel:
    return state_timeline(
        "Guard over time",
        "The state of the guard of the target; what it did is marked on every panel.",
        [Query(guard_state(), "{{target}}")],
        mappings=GUARD_STATES,
    )


def _actions_today() -> Panel:
    return stat(
        "Actions in the last day",
        "Switches of speculation that the guard made of its own accord in the last day, and how"
        " many it may make.",
        [
            Query(most('specwatch_guard_actions_today{target="$target"}'), "made"),
            Query(least('specwatch_guard_actions_limit{target="$target"}'), "allowed"),
        ],
        unit="none",
        text_mode="value_and_name",
        color_mode="none",
    )
