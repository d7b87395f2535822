"""Alerts on what the guard does, and what it cannot do."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.generate.alerts.gates import KEPT, MODEL, SERVING, asked, joined, said
from specwatch.generate.alerts.rule import Alert, Group
from specwatch.guard.state import Cause, Phase

_PERSONS = f'specwatch_guard_incident{{cause=~"{Cause.PERSON}|{Cause.ORDER_OVER}"}}'
_SINCE = "time() - max by (target) (specwatch_guard_state_since_timestamp_seconds)"
_ACTS = """\
and on (target)
  max by (target) (specwatch_guard_acts) == 1"""
_NO_ORDER = f"""\
unless on (target)
  max by (target) ({_PERSONS}) == 1"""
"""A person who switched speculation knows it."""
_EXPLAIN = "`specwatch guard explain latest --target TARGET` shows the numbers of each step."
_DASHBOARD = 'The dashboard "Guard and specwatch itself".'
_DURATION = "humanizeDuration"
_IN_STATE = asked(
    "time() - specwatch_guard_state_since_timestamp_seconds{target=%q}", "target", shown=_DURATION
)


def group() -> Group:
    """The alerts."""
    return Group("specwatch-guard", tuple(_alerts()))


def _alerts() -> Iterator[Alert]:
    yield _acted()
    yield _held()
    yield _exhausted()
    yield _waiting()
    yield _trial_failed()
    yield _off_for_days()


def _acted() -> Alert:
    return Alert(
        name="SpeculationGuardActed",
        expr=joined(
            "sum by (target, action) (",
            '  increase(specwatch_actions_total{action=~"disable|enable",result="done"}[15m])',
            ") > 0",
            "unless on (target)",
            f"  max by (target) (max_over_time({_PERSONS}[20m])) == 1",
        ),
        for_="1m",
        severity="info",
        summary="{{ $labels.target }}: the guard restarted vLLM ({{ $labels.action }})",
        description=(
            "Within the last 15 minutes it did: {{ $labels.action }} speculation. Actions in the"
            f" last day: {asked('specwatch_guard_actions_today{target=%q}', 'target')} of"
            f" {asked('specwatch_guard_actions_limit{target=%q}', 'target')}."
        ),
        meaning=(
            "The guard switched speculation off for a rule in breach, or on for a trial, and"
            " restarted vLLM for it. What a person ordered is not told."
        ),
        look=f"{_EXPLAIN} {_DASHBOARD}",
        do=(
            "Nothing, if the numbers convince you. Otherwise `specwatch guard enable TARGET` puts"
            " speculation back, and `specwatch guard pause TARGET` keeps the guard off for a day."
        ),
    )


def _held() -> Alert:
    phases = f"{Phase.HELD}|{Phase.ROLLING_BACK}"
    return Alert(
        name="SpeculationGuardHeld",
        expr=f'max by (target) (specwatch_guard_state{{state=~"{phases}"}}) == 1',
        for_="1m",
        keep_firing_for=KEPT,
        severity="critical",
        summary="{{ $labels.target }}: switching speculation failed, and the guard holds",
        description=(
            f"Held, or still putting the old command line back, for {_IN_STATE}; `specwatch guard"
            " status {{ $labels.target }}` says which. vLLM may not be serving. The guard does"
            " nothing else by itself until a person resumes it."
        ),
        meaning=(
            "vLLM did not come back as it should after the guard, or a person by it, switched"
            " speculation. The old command line was put back, or is being put back"
            " (rolling_back), and the guard keeps its hands off until somebody has looked (held)."
        ),
        look=(
            "First whether vLLM serves: `specwatch status`, the state and the log of its service."
            f" Then why: `specwatch guard status TARGET`; {_EXPLAIN}"
        ),
        do=(
            "If vLLM is down, start it as its owner wrote it. Mend what the steps name"
            " (a flag that vLLM refuses, memory, a start that takes longer than"
            " guard.start_timeout), see that `specwatch guard plan TARGET` is content, then"
            " `specwatch guard resume TARGET`."
        ),
    )


def _exhausted() -> Alert:
    wanting = f"{Phase.SUSPECT}|{Phase.CONFIRMED}|{Phase.DISABLED}"
    return Alert(
        name="SpeculationGuardBudgetExhausted",
        expr=joined(
            "max by (target) (specwatch_guard_actions_today)",
            ">= on (target)",
            "  (max by (target) (specwatch_guard_actions_limit) > 0)",
            "and on (target)",
            f'  max by (target) (specwatch_guard_state{{state=~"{wanting}"}}) == 1',
            _ACTS,
            _NO_ORDER,
        ),
        for_="5m",
        severity="warning",
        summary="{{ $labels.target }}: the guard has used up its actions of the day",
        description=(
            "{{ $value }} actions within a day, and no more are allowed. Until the oldest is a"
            " day old, it neither switches speculation off nor tries it again."
        ),
        meaning=(
            "The guard switched so often within 24 hours that guard.max_actions_per_day stops it,"
            " and there is something that it would do: a rule is in breach, or speculation is off"
            " and waits for a trial. The limit guards against restarting for ever: the traffic"
            " wavers about the break-even line, or something else restarts or slows the server."
        ),
        look=f"`specwatch guard history TARGET --since 1d`. {_EXPLAIN} {_DASHBOARD}",
        do=(
            "Decide for it: `specwatch guard disable TARGET --for 1d`, or"
            " `specwatch guard enable TARGET`. If this comes back, let the guard wait longer"
            " before a trial (guard.rearm.after) rather than act more often."
        ),
    )


def _waiting() -> Alert:
    return Alert(
        name="SpeculationGuardWaiting",
        expr=joined(
            f"({_SINCE})",
            "and on (target)",
            "  max by (target) (specwatch_guard_waiting) == 1",
            _ACTS,
            "unless on (target)",
            "  max by (target) (specwatch_guard_paused) == 1",
            _NO_ORDER,
        ),
        for_="30m",
        severity="warning",
        summary="{{ $labels.target }}: speculation should be switched off, and is not",
        description=(
            f"A breach is confirmed for {said(_DURATION)}, and something keeps the guard from"
            " acting. `specwatch guard status {{ $labels.target }}` says what."
        ),
        meaning=(
            "A rule that switches speculation off is in breach, and the guard, which may act,"
            " waits: for a maintenance window, the cooldown, its budget of the day, a server that"
            " cannot be switched now, or because a restart would cost more than it saves. A guard"
            " that only observes, or is paused, does not cause this."
        ),
        look=f"`specwatch guard status TARGET`, `specwatch guard plan TARGET`. {_DASHBOARD}",
        do=(
            "If it is right to wait, wait. If not, `specwatch guard disable TARGET` does it now,"
            " whatever the guard thinks. Mend what `specwatch guard plan` refuses."
        ),
    )


def _trial_failed() -> Alert:
    return Alert(
        name="SpeculationTrialFailed",
        expr=joined(
            f"({_SINCE} < 3600)",
            "and on (target)",
            f'  max by (target) (specwatch_guard_incident{{cause="{Cause.TRIAL_LOST}"}}) == 1',
        ),
        for_="2m",
        severity="warning",
        summary="{{ $labels.target }}: a trial of speculation was lost",
        description=(
            f"It was switched off again about {said(_DURATION)} ago. `specwatch guard status` says"
            " when the next trial is due."
        ),
        meaning=(
            "Speculation was put back to see whether it pays again, and did not: it was switched"
            " off anew. This ends by itself an hour after."
        ),
        look=f'{_EXPLAIN} The dashboard "Speculation overview" for the time of the trial.',
        do=(
            "Nothing for one. After several, change what does not fit: fewer draft tokens, another"
            " drafter; or keep it off with `specwatch guard disable TARGET`, which ends the trials."
        ),
    )


def _off_for_days() -> Alert:
    causes = "|".join((Cause.RULE, Cause.TRIAL, Cause.TRIAL_LOST, Cause.EXPLORATION))
    return Alert(
        name="SpeculationOffForDays",
        expr=joined(
            f"(1 - avg by ({MODEL}) (avg_over_time(specwatch_speculation_enabled[3d]))) > 0.9",
            f"and on ({MODEL})",
            "  present_over_time(specwatch_speculation_enabled[2h] offset 70h)",
            "and on (target)",
            f'  max by (target) (specwatch_guard_incident{{cause=~"{causes}"}}) == 1',
            SERVING,
        ),
        for_="1h",
        severity="info",
        summary="{{ $labels.target }}: speculation has been off for days",
        description=(
            f"{{{{ $labels.model_name }}}}: off for {said('humanizePercentage')} of the last three"
            " days, by the guard. Its trials were lost or did not take place."
        ),
        meaning=(
            "The guard switched speculation off days ago and has not found a reason to keep it on"
            " since. The server pays for a drafter that it does not use, or could do better with"
            " another. Where a person switched it off, this is silent."
        ),
        look=f"`specwatch guard history TARGET --since 7d`. {_EXPLAIN} {_DASHBOARD}",
        do=(
            "Change the configuration so that speculation pays, or take it out for good. To leave"
            " it off on purpose: `specwatch guard disable TARGET`."
        ),
    )
