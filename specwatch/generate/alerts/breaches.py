"""Alerts on breaches that specwatch confirmed, with its own windows and least traffic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from specwatch.config.rules import DEFAULT_RULES
from specwatch.generate.alerts.gates import (
    AT,
    KEPT,
    SERIES,
    SERVING,
    SPECULATING,
    asked,
    bucketed,
    joined,
    said,
)
from specwatch.generate.alerts.rule import Alert, Severity

_PERCENT = "humanizePercentage"
_TWO_DIGITS = 'printf "%.2f"'


class _Breach(NamedTuple):
    """One of our rules as an alert; ``what`` is said of the value, ``shown`` writes it."""

    alert: str
    rule: str
    severity: Severity
    summary: str
    what: str
    shown: str
    meaning: str
    look: str
    do: str


_OFF_PAYS = (
    "If it lasts, `specwatch guard disable TARGET` takes speculation off; where the guard acts it"
    " does so by itself. `specwatch guard plan TARGET` shows what that would run."
)

_BREACHES = (
    _Breach(
        "SpeculationTtftRegression", "ttft-regression", "warning",
        "the first token is slower than without speculation",
        "times the P99 of TTFT in own minutes without speculation at the same load",
        _TWO_DIGITS,
        "The slowest first tokens come later than on the same server at the same load without"
        " speculation: prefill waits for draft steps, or for memory that the drafter took.",
        'The dashboard "Speculation overview": "TTFT P50, P95, P99" against the baseline, "Running'
        ' and waiting requests", "KV cache". If the queue grew, it is load, not speculation.',
        _OFF_PAYS,
    ),
    _Breach(
        "SpeculationTpotRegression", "tpot-regression", "warning",
        "each further token is slower than without speculation",
        "times the P99 of TPOT in own minutes without speculation at the same load",
        _TWO_DIGITS,
        "The slowest streams get their tokens later than on the same server at the same load"
        " without speculation: a large batch pays for drafts that are thrown away.",
        'The dashboard "Speculation overview": "TPOT P50, P95, P99" against the baseline, "Running'
        ' and waiting requests". "Speculation by temperature" shows which requests it is.',
        _OFF_PAYS,
    ),
    _Breach(
        "SpeculationTailWidening", "tail-widening", "warning",
        "slow requests are further from the median than without speculation",
        "times the P99 over P50 of TPOT in own minutes without speculation",
        _TWO_DIGITS,
        "A mixed workload: requests that accept much run ahead while those that accept little pay"
        " for both. The median may look well meanwhile.",
        'The dashboard "Speculation by temperature": "Acceptance of single requests", "TPOT P50"'
        ' and "TPOT P99" by bucket.',
        "Keep requests of a kind together: send those that accept little to a server without"
        " speculation. Fewer draft tokens narrow the tail too.",
    ),
    _Breach(
        "SpeculationAcceptanceShift", "acceptance-shift", "warning",
        "acceptance has fallen against the day before",
        "against the day before, at the same temperatures",
        _PERCENT,
        "The drafter fits the traffic or the model less than yesterday: other prompts or"
        " languages, a new model version, another chat template, or a changed configuration.",
        'The dashboard "Speculation overview": "Acceptance by temperature, as lines", with its'
        " annotations for restarts. `specwatch status` shows the reading.",
        "If a deploy came just before, look at what it changed. If the traffic changed, see"
        " whether it still pays (speedup); a drafter trained on the new traffic helps.",
    ),
    _Breach(
        "SpeculationSlowerThanMeasured", "net-negative-unexplained", "warning",
        "steps take longer than when the baseline was measured",
        "times the speed that was measured without speculation",
        _TWO_DIGITS,
        "With speculation the server is slower than it was without, while acceptance and load do"
        " not explain it: every step takes longer. A neighbour, a throttled clock or an upgrade may"
        " slow down both modes, or only this one.",
        'The dashboard "Speculation overview": "Speedup and its 95 % interval". The clocks'
        " and the other processes of the machine; when vLLM was last restarted.",
        "The guard, where it may act, switches speculation off, measures, and puts it back if that"
        " did not help. By hand: `specwatch calibrate` measures anew.",
    ),
    _Breach(
        "SpeculationKvSqueeze", "kv-squeeze", "warning",
        "requests give way for lack of KV cache",
        "of the KV cache was in use, and running requests were preempted",
        _PERCENT,
        "The KV cache is full and requests are thrown out and computed anew, which costs them"
        " dearly. The draft model and its own cache take a part of that memory.",
        'The dashboard "Speculation overview": "KV cache", "Preemptions", "Running and waiting'
        ' requests".',
        "Lower `--max-num-seqs`, send less traffic, or give the drafter up:"
        " `specwatch guard disable TARGET`. A smaller drafter, or n-gram speculation, needs less.",
    ),
    _Breach(
        "SpeculationGarbage", "garbage", "critical",
        "nearly none or nearly all of the draft is accepted",
        "of the draft tokens were accepted",
        _PERCENT,
        "At a temperature above 0 neither is plausible. Nearly none: drafter and model have unlike"
        " tokenizers, or the drafter is broken, and all its work is lost. Nearly all: the model"
        " repeats itself, and users read the loop.",
        'Some answers of the server by eye. The dashboard "Speculation by temperature": which'
        " buckets, and since when; the log of vLLM and the last deploy.",
        "Nearly none: `specwatch guard disable TARGET`, then correct the drafter. Nearly all: look"
        " at prompts, chat template and sampling defaults; take the server out of service if"
        " users read garbage.",
    ),
    _Breach(
        "SpeculationShortOutputs", "short-outputs", "info",
        "most outputs are too short to gain from speculation",
        "of the requests ended within 20 tokens",
        _PERCENT,
        "A short answer is mostly prefill, and speculation only speeds up what comes after it.",
        'The dashboard "Speculation overview": "Tokens", "Requests and drafts", "Speedup and its'
        ' 95 % interval".',
        "Nothing at once. If the traffic stays like that, speculation is hardly worth its memory.",
    ),
    _Breach(
        "SpeculationNotWorthIt", "not-worth-it", "info",
        "speculation gains little",
        "times the speed without speculation, for a day",
        _TWO_DIGITS,
        "Speculation gains, but less than what its memory and its risks are usually worth.",
        'The dashboard "Speculation overview": "Speedup and its 95 % interval". `specwatch status`'
        " says how many draft tokens would be best, where that is known.",
        "Try another number of draft tokens or another drafter, or do without. Nothing is urgent.",
    ),
    _Breach(
        "SpeculationLosesForMany", "losing-bucket", "warning",
        "for a large part of the requests speculation does not pay",
        "is the reading: share of drafts that lose, or without a baseline the speedup assumed at"
        " P10 of the requests",
        _TWO_DIGITS,
        "The temperature buckets with a measured speedup below 1 carry a large part of the drafts;"
        " without a baseline, a tenth of the requests or more accept less than the assumed draft"
        " cost asks for. The average hides them.",
        'The dashboard "Speculation by temperature": "Acceptance of single requests", "Share of'
        ' drafts".',
        "Send the requests that lose to a server without speculation, or draft fewer tokens.",
    ),
)  # fmt: skip
"""All that are told by a verdict; net-negative and low-acceptance are told by their numbers."""


def of_rules() -> Iterator[Alert]:
    """An alert for each."""
    for each in _BREACHES:
        threshold = asked(
            f'specwatch_rule_threshold{{rule="{each.rule}",target=%q,model_name=%q,temperature=%q}}',
            "target", "model_name", "temperature", shown=each.shown,
        )  # fmt: skip
        yield Alert(
            name=each.alert,
            expr=bucketed(joined(_breach(f'rule="{each.rule}"', SERIES), SPECULATING, SERVING)),
            for_="2m",
            keep_firing_for=KEPT,
            severity=each.severity,
            labels={"rule": each.rule},
            summary=f"{{{{ $labels.target }}}}: {each.summary}",
            description=(
                f"{{{{ $labels.model_name }}}}{AT}: {said(each.shown)} {each.what};"
                f" the threshold is {threshold}."
            ),
            meaning=each.meaning,
            look=each.look,
            do=each.do,
        )


def custom() -> Alert:
    """Any rule that is the user's own: it may be of more than speculation, so that is no gate."""
    ours = "|".join(rule.name for rule in DEFAULT_RULES)
    threshold = asked(
        "specwatch_rule_threshold{rule=%q,target=%q,model_name=%q,temperature=%q}",
        "rule", "target", "model_name", "temperature",
    )  # fmt: skip
    return Alert(
        name="SpeculationCustomRule",
        expr=bucketed(joined(_breach(f'rule!~"{ours}"', f"rule, {SERIES}, metric"), SERVING)),
        for_="2m",
        keep_firing_for=KEPT,
        severity="warning",
        summary="{{ $labels.target }}: the rule {{ $labels.rule }} is in breach",
        description=(
            f"{{{{ $labels.model_name }}}}{AT}: {{{{ $labels.metric }}}} is {said()};"
            f" the threshold is {threshold}."
        ),
        meaning=(
            "A rule from rules.extra in the configuration of specwatch is in breach: it held for"
            " as long as the rule asks, with the traffic that it asks for."
        ),
        look=(
            "`specwatch rules list` shows the rule in words, `specwatch status` its reading; the"
            ' dashboard "Speculation overview" shows the rest of what is known of the target.'
        ),
        do=(
            "What whoever wrote the rule had in mind: its summary should say. If it fires too"
            " often, `specwatch rules test` shows when another threshold would have fired."
        ),
    )


def _breach(selector: str, by: str) -> str:
    """The reading of each breach; silent where this minute has none."""
    scope = f"rule, {SERIES}"
    return joined(
        f"max by ({by}) (specwatch_rule_value{{{selector}}})",
        f"and on ({scope})" if by.startswith("rule") else f"and on ({SERIES})",
        f"  max by ({scope}) (specwatch_rule_verdict{{{selector}}}) == 1",
    )
