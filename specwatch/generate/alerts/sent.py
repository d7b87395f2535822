"""The runbook of the alerts that the daemon sends to Alertmanager by itself."""

from __future__ import annotations

from specwatch.alerts.firing import BLOCKED, FAILED, RULE, SWITCHED_OFF
from specwatch.generate.runbook import Section

SECTIONS = (
    Section(
        RULE,
        "that of the rule",
        "The rule in the label rule is in breach: it held for as long as the rule asks, with the"
        " traffic that it asks for. Its numbers are those of the daemon's latest judgement, so"
        " they are newer than what Prometheus tells of the same rule.",
        "`specwatch rules list` shows the rule in words, `specwatch status` all its readings; the"
        ' dashboards "Speculation overview" and "Speculation by temperature" show since when.',
        "What the section of the same rule says, for each of ours has an alert of its own here"
        " (net-negative: SpeculationNetNegative, and so on). If it costs speed,"
        " `specwatch guard plan TARGET` shows what switching off would run, and"
        " `specwatch guard disable TARGET` does it. A rule of your own: what whoever wrote it"
        " had in mind.",
    ),
    Section(
        SWITCHED_OFF,
        "warning",
        "The guard switched speculation off, for a rule in breach or after a lost trial, and"
        " restarted vLLM for it. It lasts until speculation is back. What a person ordered is not"
        " told.",
        "`specwatch guard explain latest --target TARGET` shows the numbers of each step,"
        " `specwatch guard status TARGET` what comes next.",
        "Nothing at once: vLLM serves, and the guard tries speculation again by itself."
        " `specwatch guard enable TARGET` puts it back now. If it comes back to this, change what"
        " does not fit: fewer draft tokens, another drafter, other traffic.",
    ),
    Section(
        BLOCKED,
        "warning",
        "The guard has something to do and must not. Either a breach is confirmed and it waits:"
        " for a maintenance window, the cooldown, its budget of the day, a server that cannot be"
        " switched now. Or speculation is off and the owner of the service has changed how it"
        " starts, which our file hides.",
        "The description says which; `specwatch guard status TARGET` and"
        " `specwatch guard plan TARGET` say more.",
        "A confirmed breach: wait if the reason is right, else `specwatch guard disable TARGET`"
        " does it now. A changed service: `specwatch guard enable TARGET` removes our file, so"
        " that the change is in force with the restart.",
    ),
    Section(
        FAILED,
        "critical",
        "vLLM did not come back as it should after speculation was switched. The old command line"
        " was put back, or is being put back, and the guard does nothing more until somebody has"
        " looked. vLLM may not be serving.",
        "First whether vLLM serves: `specwatch status`, the state and the log of its service. Then"
        " why: `specwatch guard explain latest --target TARGET`.",
        "If vLLM is down, start it as its owner wrote it. Mend what the steps name, see that"
        " `specwatch guard plan TARGET` is content, then `specwatch guard resume TARGET`.",
    ),
)
