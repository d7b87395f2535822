"""Alerts on specwatch itself: whether what it says can be relied on."""

from __future__ import annotations

import json
from collections.abc import Iterator

from specwatch.generate.alerts.gates import (
    ALL,
    DRAFTING,
    LEAST_DRAFTS,
    MODEL,
    asked,
    joined,
    said,
)
from specwatch.generate.alerts.rule import Alert, Group
from specwatch.guard.state import Phase
from specwatch.scrape.coverage import LOW_COVERAGE

_DURATION = "humanizeDuration"
_READ = asked(
    "time() - min(specwatch_last_scrape_success_timestamp_seconds{target=%q})", "target",
    shown=f'{_DURATION} | printf "the last good scrape was %s ago"',
    nothing="it has not been read since specwatch started",
)  # fmt: skip
_WHOLE = 'printf "%.0f"'
_DASHBOARD = 'The dashboard "Guard and specwatch itself".'
_OVERDUE_DAYS = 8
"""Since the last delivery: a week, and a day in which what fails at first may arrive."""
_LOOPBACK = r'"https?://(localhost|127[.].*|\\[::1\\])([:/].*)?"'
_RESTARTS = "|".join((Phase.RESTARTING, Phase.VERIFYING, Phase.ROLLING_BACK))


def group(job: str) -> Group:
    """The alerts; ``job`` is the scrape job of the daemon."""
    return Group("specwatch-itself", tuple(_alerts(job)))


def _alerts(job: str) -> Iterator[Alert]:
    yield _down(job)
    yield _stuck()
    yield _scrape_failing()
    yield _target_name_twice()
    yield _coverage_low()
    yield _tap_lost()
    yield _store_behind()
    yield _windows_lost()
    yield _alertmanager_unreachable()
    yield _judging_fails()
    yield _report_undelivered()
    yield _report_overdue()


def _down(job: str) -> Alert:
    up = f"up{{job={json.dumps(job, ensure_ascii=False)}}}"
    down = f"({up} == 0 or ({up} == 1 unless on (job, instance) specwatch_build_info))"
    unwatched = joined(
        "(",
        "    max without (url, engine_version) (last_over_time(specwatch_target_info[1d]))",
        "    unless on (target) specwatch_target_info",
        "  )",
    )
    return Alert(
        name="SpecwatchDown",
        expr=joined(
            f"max by (job, instance) {down}",
            f"  * on (job, instance) group_right () {unwatched}",
            "or",
            down,
            f"  unless on (job, instance) {unwatched}",
            "or",
            f"absent({up})",
        ),
        for_="5m",
        severity="critical",
        summary="specwatch is down{{ with $labels.target }}: nobody watches {{ . }}{{ end }}",
        description=(
            "{{ if $labels.instance }}Prometheus reads nothing of specwatch from"
            " {{ $labels.instance }}{{ else }}Prometheus knows no target of the job"
            " {{ $labels.job }}{{ end }} (up: {{ $value }}). The guard"
            "{{ with $labels.target }} of {{ . }}{{ end }} does nothing meanwhile, and the other"
            " alerts{{ with $labels.target }} on {{ . }}{{ end }} are silent."
        ),
        meaning=(
            "The daemon does not run, does not answer, or Prometheus does not scrape it any more."
            " vLLM goes on as it is. The daemon resumes what it had begun when it is back. It is"
            " told once for each target that nobody else watches, and without a target where"
            " another daemon does, or none is known."
        ),
        look=(
            "`systemctl status specwatch` and `journalctl -u specwatch`; on the daemon's machine"
            " `specwatch status`. If that answers, Prometheus is at fault: its page of targets"
            " says why a scrape fails. The job has to be the one that these rules were"
            " generated for."
        ),
        do=(
            "Start it. If it refuses its configuration, `specwatch check-config` says where and"
            " why. If vLLM was being restarted by it, see that vLLM serves."
        ),
    )


def _stuck() -> Alert:
    return Alert(
        name="SpecwatchStuck",
        expr="max by (target) (specwatch_target_stuck) == 1",
        for_="3m",
        severity="critical",
        summary="{{ $labels.target }}: specwatch is stuck",
        description=(
            f"The loop of {{{{ $labels.target }}}} has not turned within three intervals; {_READ}."
        ),
        meaning=(
            "The daemon runs, but does not get round to this target: it waits for something"
            " without end, or the machine is overloaded. Rules and guard of it stand still."
        ),
        look=(
            "`specwatch status` and `journalctl -u specwatch`; load and memory of the machine, and"
            f" the database. {_DASHBOARD}"
        ),
        do=(
            "Restart the daemon: at most the unfinished minute is lost. systemd's watchdog does so"
            " only where every target is stuck. Keep its log, for this is a defect unless the"
            " machine was overloaded."
        ),
    )


def _scrape_failing() -> Alert:
    return Alert(
        name="SpecwatchScrapeFailing",
        expr=joined(
            "max by (target) (",
            "  sum by (target, job, instance) (increase(specwatch_scrape_failures_total[10m]))",
            "  / sum by (target, job, instance) (increase(specwatch_scrapes_total[10m]))",
            ") > 0.5",
            "unless on (target)",
            f'  max by (target) (specwatch_guard_state{{state=~"{_RESTARTS}"}}) == 1',
        ),
        for_="10m",
        severity="warning",
        summary="{{ $labels.target }}: vLLM's metrics cannot be read",
        description=(
            f"{said('humanizePercentage')} of the scrapes of the last 10 minutes failed; {_READ}."
        ),
        meaning=(
            "vLLM is down, hangs, answers too slowly, or with something that is no metrics page."
            " Nothing is judged meanwhile. While the guard itself restarts vLLM this is silent,"
            " and it takes longer than most starts."
        ),
        look=(
            "`specwatch status` has the reason, `specwatch scrape URL` tries by hand. Whether"
            f" vLLM answers its users, and its log. {_DASHBOARD}"
        ),
        do=(
            "vLLM down: start it. A changed address, port or API key: correct the target"
            " and see with `specwatch check-config`. A server that is gone for good: remove the"
            " target."
        ),
    )


def _target_name_twice() -> Alert:
    return Alert(
        name="SpecwatchTargetNameTwice",
        expr=joined(
            "count by (target) (count by (target, url) (specwatch_target_info)) > 1",
            "or",
            "count by (target) (",
            "  count by (target, machine) (",
            f"    label_replace(specwatch_target_info{{url=~{_LOOPBACK}}},",
            '      "machine", "$1", "instance", "(.*?)(:[0-9]+)?")',
            "  )",
            ") > 1",
        ),
        for_="10m",
        severity="warning",
        summary="{{ $labels.target }}: several servers have this name",
        description=(
            "Daemons watch {{ $value }} addresses under the name {{ $labels.target }}. Alerts and"
            " dashboards take them for one server, and may show the healthier one."
        ),
        meaning=(
            "Two daemons that Prometheus scrapes have a target of one name with different URLs, or"
            " with a URL that means another machine for each, such as http://127.0.0.1:8000. Two"
            " daemons that watch one server under one name and one URL are well."
        ),
        look=f"{_DASHBOARD} `specwatch status` on each of the machines has names and URLs.",
        do=(
            "Give each server a name of its own (targets: name in the configuration; without"
            " one it has the host's name in it). If it is one server, write its URL the same"
            " way everywhere."
        ),
    )


def _coverage_low() -> Alert:
    return Alert(
        name="SpecwatchCoverageLow",
        expr=joined(
            f"max by ({MODEL}) (specwatch_coverage_ratio) < {LOW_COVERAGE}",
            DRAFTING,
        ),
        for_="30m",
        severity="info",
        summary="{{ $labels.target }}: the temperature of many requests is not known",
        description=(
            f"The tap saw {said('humanizePercentage')} of the drafts of"
            " {{ $labels.model_name }}; what is said by temperature holds for those only."
        ),
        meaning=(
            "The tap misses requests: they pass it by, ask for several answers at once (n > 1), or"
            " vLLM gives no acceptance record. What is said of all requests together is not"
            " touched."
        ),
        look=(
            "`specwatch status` says why requests are not covered. The dashboard"
            ' "Speculation by temperature": "Coverage", "Why requests are not covered".'
        ),
        do=(
            "`specwatch tap flags` says what vLLM has to be started with. Lead all traffic"
            " through the proxy where it is used."
        ),
    )


def _tap_lost() -> Alert:
    return Alert(
        name="SpecwatchTapLost",
        expr=joined(
            "max by (target) (specwatch_tap_up) == 0",
            "and on (target)",
            "  max by (target) (max_over_time(specwatch_tap_up[1d])) == 1",
            "and on (target)",
            "  max by (target) (specwatch_target_up) == 1",
            "and on (target)",
            f"  max by (target) (specwatch_drafts_per_second{{{ALL}}}) > {LEAST_DRAFTS}",
        ),
        for_="15m",
        severity="warning",
        summary="{{ $labels.target }}: its tap counts no more",
        description=(
            "The tap of {{ $labels.target }} counted within the last day, and does not now (tap"
            " up: {{ $value }}): nothing is known by temperature."
        ),
        meaning=(
            "vLLM was started without the tap, the proxy is down, or what the tap counts cannot be"
            " so and is left out. Nothing is told of single temperatures any more; what is said of"
            " all requests together is not touched. This ends by itself a day after the tap's"
            " last minute."
        ),
        look=(
            "`specwatch status` says what is wrong with the tap. Whether vLLM was deployed anew,"
            " by somebody who did not know of it; the proxy's log, where one is used."
        ),
        do=(
            "Start vLLM with what `specwatch tap flags` says, or start the proxy. If the tap was"
            " taken out on purpose, nothing."
        ),
    )


def _store_behind() -> Alert:
    return Alert(
        name="SpecwatchStoreBehind",
        expr="specwatch_store_behind_seconds > 300",
        for_="5m",
        severity="warning",
        summary="{{ $labels.instance }}: specwatch cannot write to its database",
        description=(
            f"For {said(_DURATION)}. It watches on from memory, and the guard begins nothing:"
            " it never acts without a durable claim."
        ),
        meaning=(
            "The database is locked, full, gone, or of another version. Windows wait in memory,"
            " and are given up when there are too many (SpecwatchWindowsLost)."
        ),
        look="`specwatch status` has the error; `specwatch db current` asks the database itself.",
        do=(
            "Make room, start the database, or bring it to this version: `specwatch db upgrade`."
            " What waits is written by itself then."
        ),
    )


def _windows_lost() -> Alert:
    return Alert(
        name="SpecwatchWindowsLost",
        expr=joined(
            "increase(specwatch_store_windows_dropped_total[30m])",
            "+ increase(specwatch_store_verdicts_dropped_total[30m])",
            "> 0",
        ),
        for_="1m",
        severity="warning",
        summary="{{ $labels.instance }}: specwatch loses history",
        description=(
            f"About {said(_WHOLE)} windows and verdicts of the last 30 minutes were given up,"
            " because too many waited for the database."
        ),
        meaning=(
            "The database could not be written to for so long that the queue was full. Reports"
            " have a gap; rules are judged from memory and are not touched."
        ),
        look=f"As for SpecwatchStoreBehind: `specwatch status`. {_DASHBOARD}",
        do="Mend the database first. What is lost does not come back.",
    )


def _alertmanager_unreachable() -> Alert:
    return Alert(
        name="SpecwatchAlertmanagerUnreachable",
        expr="specwatch_alertmanager_up == 0",
        for_="10m",
        severity="warning",
        summary="{{ $labels.instance }}: specwatch cannot tell Alertmanager",
        description=(
            "{{ $labels.url }} has not taken what specwatch sends for 10 minutes (up:"
            " {{ $value }}). What Prometheus tells is not touched."
        ),
        meaning=(
            "The daemon sends its own alerts, with the numbers of each decision, to Alertmanager."
            " That fails; it goes on trying and sends what holds then."
        ),
        look=f"`specwatch status` has the error, `specwatch check-config` tries it. {_DASHBOARD}",
        do="Start Alertmanager, or correct its address or credentials in the configuration.",
    )


def _judging_fails() -> Alert:
    return Alert(
        name="SpecwatchJudgingFails",
        expr="increase(specwatch_judging_failures_total[15m]) > 0",
        for_="5m",
        severity="warning",
        summary="{{ $labels.instance }}: specwatch fails in judging",
        description=(
            f"About {said(_WHOLE)} times in the last 15 minutes. That is a defect of specwatch."
        ),
        meaning=(
            "Judging met something that it was not made for. The minute counts as without data;"
            " rules neither fire nor clear by it, and the guard does nothing."
        ),
        look="`journalctl -u specwatch` has the event and where it came from; `specwatch status`.",
        do=(
            "Report it with that log and the version (`specwatch --version`). Until then watch"
            " the dashboards: what rules and guard say may be old."
        ),
    )


def _report_undelivered() -> Alert:
    return Alert(
        name="SpecwatchReportUndelivered",
        expr="max by (channel) (specwatch_report_undelivered) == 1",
        for_="1h",
        severity="warning",
        summary="The report of specwatch did not arrive by {{ $labels.channel }}",
        description=(
            "For an hour the last report has not reached all that it is for by"
            " {{ $labels.channel }} (undelivered: {{ $value }})."
        ),
        meaning=(
            "The report could not be made; or the mail server or the webhook does not take it, or"
            " not for all who are to have it; or the book of deliveries is damaged. What may"
            " arrive later is sent every 15 minutes for 16 hours, to those only who are not known"
            " to have it; what was refused for good waits for you. A webhook that takes it twice"
            " without an answer counts as sent, and is told as never confirmed."
        ),
        look=(
            "The status page has the reason. `journalctl -u specwatch-report` says what the"
            " server said, or why no report was made; `specwatch check-config`"
            " tries to reach it without sending anything."
        ),
        do=(
            "Correct the section report of the configuration, or the server, and run"
            " `systemctl restart specwatch-report`. Whoever is not to have reports any more:"
            " remove the address from the configuration."
        ),
    )


def _report_overdue() -> Alert:
    return Alert(
        name="SpecwatchReportOverdue",
        expr=joined(
            "time()",
            "  - max by (channel) (specwatch_report_last_delivery_timestamp_seconds)",
            f"> {_OVERDUE_DAYS} * 86400",
        ),
        for_="1h",
        severity="warning",
        summary="No report of specwatch has arrived by {{ $labels.channel }} for over a week",
        description=(
            f"The last one that is known to have arrived by {{{{ $labels.channel }}}} did so"
            f" {said(_DURATION)} ago; there is one each week."
        ),
        meaning=(
            "The timer is stopped or its machine was off, the service ends before it has begun a"
            " report (a full disk, a refused configuration), or a webhook never confirms what it"
            " gets."
        ),
        look=(
            "`systemctl list-timers specwatch-report.timer`, `systemctl status specwatch-report`"
            " and its journal; `specwatch check-config`; room on the disk of report.directory."
        ),
        do=(
            "Mend what they say, and run `systemctl start specwatch-report`. If reports are made"
            " less often than each week on purpose, silence this alert, or drop it where the"
            " rules are loaded."
        ),
    )
