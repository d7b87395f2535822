"""Problems in sentences: what is hurt, since when, why, and what to do."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from specwatch.domain.speedup import PRESENT
from specwatch.domain.units import format_duration
from specwatch.guard.state import Phase
from specwatch.problems import Problem, ProblemKind
from specwatch.rules.decision_view import SloView
from specwatch.rules.objectives import BURNS
from specwatch.wording import figures, guard, speculation
from specwatch.wording.text import LONGEST_SENTENCE, shown

_LATENCIES = {"ttft": "to the first token", "tpot": "per token", "e2e": "in all"}
_COMPARE = "See whether speculation is the cause: the speedup beside it, and the load."
_HALF_A_PERCENT = 0.995
_MANY, _NAMED = 2, 3
"""So many more problems of a kind make one sentence, which names the first few."""
_GROUP = 3
"""In a group of so many, one that loses alone has the cause in itself."""
_WINDOWS = {burn.long: burn.factor for burn in BURNS if burn.severity == "critical"}
"""Windows of burn rates that page, and those rates."""


class Headline(NamedTuple):
    """A problem as a few words, as a sentence, and what to do about it (empty if nothing)."""

    words: str
    sentence: str
    remedy: str = ""


def headlines(problems: Sequence[Problem], now: float, most: int) -> list[tuple[Problem, Headline]]:
    """The first few of problems in their order; where many are of one kind, the first of them
    names the others."""
    texts = []
    for _, group in groupby(problems, key=lambda problem: problem.kind):
        first, *others = group
        if len(others) < _MANY:
            texts += [(problem, headline(problem, now)) for problem in (first, *others)]
            continue
        names = list(dict.fromkeys(shown(problem.target) for problem in others))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        text = headline(first, now)
        sentence = f"{text.sentence} Likewise: {', '.join(names[:_NAMED])}{more}."
        texts.append((first, text._replace(sentence=sentence)))
    return texts[:most]


def headline(problem: Problem, now: float) -> Headline:
    """The text of a problem; ``now`` is a Unix time."""
    return _HEADLINES[problem.kind](problem, now)


def no_problem(outcomes: Iterable[str]) -> str:
    """``No problem is known. Speculation pays for 3 models, and is off for 1 model.``

    ``outcomes`` are those of :func:`specwatch.wording.speculation.answer`, one for each model.
    """
    counts = Counter(outcomes)
    parts = [
        f"{words} {figures.counted(counts[outcome], 'model')}"
        for outcome, words in _OUTCOMES.items()
        if counts[outcome]
    ]
    return f"No problem is known.{f' Speculation {_listed(parts)}.' if parts else ''}"


_OUTCOMES = {
    "pays": "pays for",
    "not_worth_it": "pays, but little, for",
    "even": "is not clearly a gain or a loss for",
    "off": "is off for",
    "no_traffic": "has no traffic for",
    "unjudged": "cannot be judged for",
    "unknown": "is not measured for",
    "not_read": "is not known yet for",
    "failed": "cannot be shown for",
}


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])}, and {parts[-1]}"


def since(time: float | None, now: float) -> str:
    """`` since 15:00 UTC (13 min)``, with the date unless it is today; empty if not known."""
    if time is None:
        return ""
    written = figures.moment(time)
    today, _, clock = written.partition(" ")
    written = clock if figures.moment(now).startswith(today) else written
    return f" since {written} ({figures.span(now - time)})"


def name(problem: Problem) -> str:
    """The target, and which of its models, if it has several."""
    target = shown(problem.target)
    return (
        target
        if problem.alone or not problem.model_name
        else (f"{target}, model {shown(problem.model_name)},")
    )


def _loses(problem: Problem, now: float) -> Headline:
    speedup = problem.speedup
    if speedup is None:
        sentence = f"{name(problem)} is slower with speculation{since(problem.since, now)}."
        return Headline("speculation loses", sentence, _switch_off(problem))
    sentence = (
        f"{name(problem)} is {_slower(speedup.value)} with speculation{since(problem.since, now)}:"
        f" {speedup.value:.2f} ({speedup.lower:.2f} to {speedup.upper:.2f}) times as fast as"
        f" without over the last {figures.span(PRESENT)}."
    )
    if problem.detail:
        sentence += f" Likely cause: {_detail(problem)}"
    if problem.of_group >= _GROUP:
        sentence += f" It is the only one of {problem.of_group} in its group that loses."
    return Headline(f"{_slower(speedup.value)} with speculation", sentence, _switch_off(problem))


def _slower(speedup: float) -> str:
    """How much slower it is, as a share of the speed without speculation."""
    return f"{1 - speedup:.0%} slower" if speedup < _HALF_A_PERCENT else "slightly slower"


def _switch_off(problem: Problem) -> str:
    target = shlex.quote(shown(problem.workload or problem.target))
    if problem.guard == "act":
        if problem.phase not in (Phase.OBSERVING, Phase.SUSPECT, Phase.CONFIRMED, Phase.HELD, ""):
            return f"The guard is {guard.phase(problem.phase)}: `specwatch guard status {target}`."
        if problem.waiting:
            return (
                f"The guard does not act yet: {shown(problem.waiting, LONGEST_SENTENCE)}."
                f" Disable speculation: `specwatch guard disable {target}`."
            )
        if problem.phase in (Phase.SUSPECT, Phase.CONFIRMED):
            return (
                f"The guard is {guard.phase(problem.phase)} and will switch speculation off:"
                f" `specwatch guard status {target}`."
            )
    if problem.guard:
        return f"Disable speculation: `specwatch guard disable {target}`."
    if problem.switchable:
        return f"Disable speculation: `specwatch switch {target} --k 0 --lease 1h`."
    return "Restart vLLM without speculation: `specwatch strip` prints its command without it."


def _burns(problem: Problem, _now: float) -> Headline:
    slo = problem.slo
    if slo is None:
        return Headline("budget burning", f"An error budget of {name(problem)} burns fast.")
    rates = {window: slo.burn_rates.get(window) or 0.0 for window in _WINDOWS}
    window = max(rates, key=lambda one: rates[one] / _WINDOWS[one])
    slow = min(rates[window] * (1 - slo.objective), 1.0)
    sentence = (
        f"{slow:.0%} of the requests of {name(problem)} {_take(slo)} in the last {window}"
        f" ({1 - slo.objective:.2%} may), {figures.number(rates[window], 1)} times too many."
    )
    return Headline(f"budget of {shown(slo.name)} burning", sentence, _COMPARE)


def _take(slo: SloView) -> str:
    return f"take more than {figures.seconds(slo.threshold)} {_LATENCIES.get(slo.metric, '')}"


def _spent(problem: Problem, _now: float) -> Headline:
    slo = problem.slo
    if slo is None:
        return Headline("budget spent", f"An error budget of {name(problem)} is spent.")
    sentence = (
        f"{name(problem)} has {figures.budget_left(slo.budget_left)} for {shown(slo.name)}"
        f" ({format_duration(slo.window)})."
    )
    return Headline(f"budget of {shown(slo.name)} spent", sentence)


def _unread(problem: Problem, now: float) -> Headline:
    sentence = f"{name(problem)} cannot be read{since(problem.since, now)}: {_detail(problem)}"
    return Headline(
        "cannot be read", sentence, "Check that the engine runs and answers on its url."
    )


def _stuck(problem: Problem, now: float) -> Headline:
    sentence = f"{name(problem)} is stuck: no scrape ended{since(problem.since, now)}."
    return Headline("stuck", sentence, "See the log of specwatch; a restart of it mends this.")


def _held(problem: Problem, now: float) -> Headline:
    state = guard.phase(problem.phase)
    sentence = (
        f"The guard of {name(problem)} is {state}{since(problem.since, now)}: {_detail(problem)}"
    )
    target = shlex.quote(shown(problem.workload or problem.target))
    remedy = f"Look at the server, then: `specwatch guard resume {target}`."
    return Headline(f"guard {state}", sentence, remedy if problem.phase == Phase.HELD else "")


def _several(problem: Problem, _now: float) -> Headline:
    sentence = (
        f"Several servers answer in turn at the url of {name(problem)}: it is that of a load"
        " balancer, so nothing can be measured."
    )
    remedy = "Make each server a target, as `discovery` does with pods."
    return Headline("several servers", sentence, remedy)


def _guard_fails(problem: Problem, _now: float) -> Headline:
    return Headline("guard failing", f"The guard of {name(problem)} fails: {_detail(problem)}")


def _stopped(problem: Problem, _now: float) -> Headline:
    words = speculation.engine_stop(problem.stop)
    sentence = f"Speculation of {name(problem)} is {words}."
    return Headline("switched off by the engine", sentence, speculation.STOPPED_REMEDY)


def _switched(problem: Problem, now: float) -> Headline:
    state = guard.phase(problem.phase)
    if problem.phase != Phase.DISABLED:
        why = f": {_detail(problem)}" if problem.detail else "."
        sentence = f"The guard of {name(problem)} is {state}{since(problem.since, now)}{why}"
        if problem.waiting:
            sentence += f" It waits: {shown(problem.waiting, LONGEST_SENTENCE)}."
        return Headline(f"guard {state}", sentence)
    back = problem.rearm_at
    trial = (
        "It stays off until an operator enables it."
        if back is None
        else f"It is tried again {f'in {figures.span(back - now)}' if back > now else 'now'}."
    )
    words = f"switched off by {shown(problem.detail)}" if problem.detail else "switched off"
    sentence = (
        f"Speculation is off for {name(problem)}{since(problem.since, now)}: {words}. {trial}"
    )
    return Headline(words, sentence)


def _breach(problem: Problem, now: float) -> Headline:
    finding = problem.finding
    if finding is None:
        return Headline("rule in breach", f"A rule is in breach for {name(problem)}.")
    sentence = f"{name(problem)}: {speculation.confirmed(finding, now)}."
    summary = shown(finding.summary, LONGEST_SENTENCE)
    return Headline(f"{shown(finding.rule)} in breach", sentence, summary and f"{summary}.")


def _lost(problem: Problem, _now: float) -> Headline:
    speedup = problem.speedup
    known = "" if speedup is None else f": {_slower(speedup.value)} with it"
    sentence = f"{name(problem)} lost with speculation over the last hour{known}; not clear now."
    return Headline("lost over the last hour", sentence)


def _unjudged(problem: Problem, now: float) -> Headline:
    sentence = (
        f"Speculation of {name(problem)} is unjudged{since(problem.since, now)}: {_detail(problem)}"
    )
    target = problem.workload or problem.target
    return Headline("unjudged", sentence, speculation.measured_by(problem.means, target))


def _proxy(problem: Problem, now: float) -> Headline:
    sentence = (
        f"The proxy of {name(problem)} cannot be read{since(problem.since, now)}:"
        f" {_detail(problem)}"
    )
    return Headline("its proxy cannot be read", sentence)


def _tap(problem: Problem, _now: float) -> Headline:
    return Headline("temperatures in doubt", f"The tap of {name(problem)}: {_detail(problem)}")


def _not_shown(problem: Problem, _now: float) -> Headline:
    sentence = f"{name(problem)} cannot be shown, for a defect of specwatch: see its log."
    return Headline("cannot be shown", sentence)


def _detail(problem: Problem) -> str:
    """The cause as the end of a sentence."""
    text = shown(problem.detail, LONGEST_SENTENCE) or "the reason is not known"
    return text if text.endswith((".", "!", "?")) else f"{text}."


_HEADLINES = {
    ProblemKind.LOSES: _loses,
    ProblemKind.BURNS: _burns,
    ProblemKind.UNREAD: _unread,
    ProblemKind.STUCK: _stuck,
    ProblemKind.HELD: _held,
    ProblemKind.GUARD_FAILS: _guard_fails,
    ProblemKind.SEVERAL: _several,
    ProblemKind.BREACH: _breach,
    ProblemKind.LOST: _lost,
    ProblemKind.UNJUDGED: _unjudged,
    ProblemKind.SPENT: _spent,
    ProblemKind.STOPPED: _stopped,
    ProblemKind.SWITCHED: _switched,
    ProblemKind.PROXY: _proxy,
    ProblemKind.TAP: _tap,
    ProblemKind.NOT_SHOWN: _not_shown,
}
