"""Alerts on whether speculation pays, as specwatch judges it."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.generate.alerts.breaches import custom, of_rules
from specwatch.generate.alerts.gates import (
    ALL,
    AT,
    DRAFTING,
    DRAFTING_IN_BUCKET,
    KEPT,
    MODEL,
    SERIES,
    SPECULATING,
    asked,
    bucketed,
    joined,
    said,
)
from specwatch.generate.alerts.rule import Alert, Group
from specwatch.scrape.coverage import LOW_COVERAGE

_MEASURED = f"max by ({MODEL}) (specwatch_speedup_measured) == 1"
_TWO_DIGITS = 'printf "%.2f"'


def group() -> Group:
    """The alerts."""
    return Group("specwatch-speculation", tuple(_alerts()))


def _alerts() -> Iterator[Alert]:
    yield _net_negative()
    yield _bucket_loses()
    yield _low_acceptance()
    yield from of_rules()
    yield custom()


def _net_negative() -> Alert:
    of = "target=%q,model_name=%q"
    speed, upper, reading, threshold = (
        asked(query, "target", "model_name", shown=_TWO_DIGITS)
        for query in (
            f"specwatch_speedup_ratio{{{of},{ALL}}}",
            f"specwatch_speedup_ratio_upper{{{of},{ALL}}}",
            f'specwatch_rule_value{{rule="net-negative",{of}}}',
            f'specwatch_rule_threshold{{rule="net-negative",{of}}}',
        )
    )
    return Alert(
        name="SpeculationNetNegative",
        expr=joined(
            "(",
            f"    max by ({MODEL}) (specwatch_speedup_ratio_upper{{{ALL}}}) < 1",
            f"    and on ({MODEL}) {_MEASURED}",
            "  or",
            f'    max by ({MODEL}) (specwatch_rule_verdict{{rule="net-negative"}}) == 1',
            ")",
            SPECULATING,
            DRAFTING,
        ),
        for_="15m",
        keep_firing_for=KEPT,
        severity="critical",
        labels={"rule": "net-negative"},
        summary="{{ $labels.target }}: speculation makes {{ $labels.model_name }} slower",
        description=(
            f"Over the last hour, at equal load, it ran at {speed} times the speed it has without"
            f" speculation, at {upper} times at most by a 95 % interval. The rule net-negative"
            f" reads {reading}, and its threshold is {threshold}. Nothing has switched speculation"
            " off within 15 minutes."
        ),
        meaning=(
            "Each token takes longer than it would without speculation: all of the confidence"
            " interval of the measured speedup of the last hour is below 1, or the rule"
            " net-negative is in breach, which looks at minutes too."
            " The guard switches speculation off for this within minutes where it may act: that"
            " this alert fires says that it may not, or cannot."
        ),
        look=(
            'The dashboard "Speculation overview": "Speedup and its 95 % interval", and "Acceptance'
            ' against the break-even line": acceptance may have fallen, or load risen, where a'
            " draft costs more. `specwatch status` shows the rules in breach, and"
            " `specwatch guard status` why the guard does nothing."
        ),
        do=(
            "`specwatch guard plan TARGET` shows what switching off would run and cost;"
            " `specwatch guard disable TARGET --reason WHY` does it, also where guard.mode is"
            " observe. Without a guard, restart vLLM without its speculative options:"
            " `specwatch strip` writes that command line. To have it done for you, set guard.mode"
            " to act."
        ),
    )


def _bucket_loses() -> Alert:
    return Alert(
        name="SpeculationBucketLoses",
        expr=joined(
            f'max by ({SERIES}) (specwatch_speedup_ratio{{temperature!="all"}})',
            f"and on ({SERIES})",
            f'  max by ({SERIES}) (specwatch_speedup_ratio_upper{{temperature!="all"}}) < 1',
            f"and on ({MODEL})",
            f"  {_MEASURED}",
            SPECULATING,
            DRAFTING_IN_BUCKET,
        ),
        for_="30m",
        keep_firing_for=KEPT,
        severity="warning",
        labels={"rule": "bucket-loses"},
        summary="{{ $labels.target }}: speculation loses at temperature {{ $labels.temperature }}",
        description=(
            f"{{{{ $labels.model_name }}}}: at {said(_TWO_DIGITS)} times the speed without it; all"
            " of the interval is below 1."
        ),
        meaning=(
            "Requests of this range of sampling temperatures accept so few draft tokens that they"
            " would be served faster without speculation, by the break-even line measured on this"
            " server. Others may gain: the whole is told by SpeculationNetNegative."
        ),
        look=(
            'The dashboard "Speculation by temperature": "Acceptance by bucket, and where it breaks'
            ' even", "Share of requests", and "Coverage", without which its numbers say little.'
        ),
        do=(
            "Send these requests to a server without speculation, or draft fewer tokens. If their"
            " share is small, nothing has to be done: silence this alert for the bucket."
        ),
    )


def _low_acceptance() -> Alert:
    acceptance = f"max by ({SERIES}) (specwatch_acceptance_ratio"
    accepted = asked(
        "specwatch_acceptance_ratio{target=%q,model_name=%q,temperature=%q}",
        "target", "model_name", "temperature", shown="humanizePercentage",
    )  # fmt: skip
    line = asked(
        "specwatch_assumed_break_even_acceptance_ratio{target=%q,model_name=%q}",
        "target", "model_name", shown="humanizePercentage",
    )  # fmt: skip
    return Alert(
        name="SpeculationLowAcceptance",
        expr=bucketed(
            joined(
                "(",
                "    (",
                f'        {acceptance}{{temperature!="all"}})',
                "      or",
                f"        {acceptance}{{{ALL}}})",
                f"        unless on ({MODEL})",
                f"          max by ({MODEL}) (specwatch_coverage_ratio) >= {LOW_COVERAGE}",
                f"    ) < on ({MODEL}) group_left",
                f"      max by ({MODEL}) (specwatch_assumed_break_even_acceptance_ratio)",
                "  or",
                f'    max by ({SERIES}) (specwatch_rule_verdict{{rule="low-acceptance"}}) == 1',
                ")",
                SPECULATING,
                DRAFTING_IN_BUCKET,
            )
        ),
        for_="15m",
        keep_firing_for=KEPT,
        severity="warning",
        labels={"rule": "low-acceptance"},
        summary=f"{{{{ $labels.target }}}}: few draft tokens are accepted{AT}",
        description=(
            f"{{{{ $labels.model_name }}}} accepts {accepted} of them. Whether that pays is not"
            f" measured; about {line} is needed by the assumed draft cost, unless the rule"
            " low-acceptance has another threshold."
        ),
        meaning=(
            "Fewer of the proposed tokens are kept than pay for drafting them, if a draft token"
            " costs what draft_cost_ratio of the target says. The true break-even line depends on"
            " hardware and load, and there is no baseline to measure it by. With a baseline this"
            " alert gives way to SpeculationNetNegative."
            " Without a temperature it is of every request: the tap sees too few to tell them"
            " apart, or there is none."
        ),
        look=(
            'The dashboard "Speculation by temperature": "Acceptance by position". A first position'
            " that fails means an unfit drafter, late ones that fail mean too many tokens a draft."
            " `specwatch status` says whether something was measured."
        ),
        do=(
            "Measure: `specwatch calibrate --off URL` against the same server without speculation,"
            " in a quiet hour; or correct draft_cost_ratio. If it does not pay: fewer draft tokens,"
            " another drafter, or `specwatch guard disable TARGET`."
        ),
    )
