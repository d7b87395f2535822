"""Panels of specwatch itself: its scrapes, its store, its judging and paging, its process."""

from __future__ import annotations

from specwatch.generate.dashboards.layout import Band
from specwatch.generate.dashboards.once import TARGET, least, most
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

_MINE = "on (instance, job) group_left (daemon) specwatch_build_info"
"""Of all processes that Prometheus knows, those that are a specwatch daemon."""
_DAEMON = "{{instance}}"
"""Which daemon; what it says of itself is a line of its own."""
_ONE_LINE = ((None, "transparent"), (1.0, "red"))
_REACHED = (ShownAs(0, "failing", "red"), ShownAs(1, "reached", "green"))
_RESPONDS = (
    ShownAs(0, "down", "red"),
    ShownAs(1, "up", "green"),
    ShownAs(2, "stuck", "dark-red"),
)


def bands(targets: str) -> list[Band]:
    """The groups; ``targets`` selects the targets in a query."""
    return [
        Band("Scrapes", 6, [(16, _up(targets)), (8, _counts(targets))]),
        Band(None, 8, [(8, _duration(targets)), (8, _failures(targets)), (8, _skipped(targets))]),
        Band(None, 8, [(12, _lag(targets)), (12, _targets(targets))]),
        Band("Store", 8, [(8, _written()), (8, _queued()), (8, _behind())]),
        Band(
            "Judging and paging", 7, [(8, _defects()), (8, _alertmanagers()), (8, _page_failures())]
        ),
        Band("The daemon", 7, [(4, _version()), (7, _memory()), (7, _cpu()), (6, _files())]),
    ]


def _up(targets: str) -> Panel:
    up = least(f"specwatch_target_up{{{targets}}}", TARGET)
    stuck = most(f"specwatch_target_stuck{{{targets}}}", TARGET)
    return state_timeline(
        "Targets",
        "Whether the last scrape of each target succeeded; stuck: none has ended, well or not,"
        " within three intervals, so that specwatch is blind there.",
        [Query(f"2 * ({stuck} == 1) or {up}", "{{target}}")],
        mappings=_RESPONDS,
    )


def _counts(targets: str) -> Panel:
    restarts = most(f"increase(specwatch_engine_restarts_total{{{targets}}}[1h])", TARGET)
    left_out = most(f"specwatch_series_left_out{{{targets}}}", TARGET)
    return timeseries(
        "Restarts, and what is left out",
        "Restarts of each engine within an hour, and how many models, series and verdicts are too"
        " many to be exported.",
        [
            Query(f"round({restarts})", "{{target}} restarts"),
            Query(left_out, "{{target}} left out"),
        ],
        unit="none",
        thresholds=_ONE_LINE,
        minimum=0,
        decimals=0,
        legend_values=("max",),
    )


def _duration(targets: str) -> Panel:
    duration = f"specwatch_scrape_duration_seconds{{{targets}}}"
    interval = f"specwatch_scrape_interval_seconds{{{targets}}}"
    return timeseries(
        "Scrape duration, of the interval",
        "Duration of the last scrape as a share of the interval of the target: from 100 % on"
        " scrapes are skipped. Most of it is the time in which the engine answers.",
        [Query(most(f"{duration} / {interval}", TARGET), "{{target}}")],
        unit="percentunit",
        thresholds=((None, "transparent"), (0.5, "orange"), (1.0, "red")),
        minimum=0,
        legend_values=("lastNotNull", "max"),
    )


def _failures(targets: str) -> Panel:
    failed = f"rate(specwatch_scrape_failures_total{{{targets}}}[$__rate_interval])"
    return timeseries(
        "Failed scrapes by reason",
        "Failed scrapes per second: refused, unreachable and timeout are the network or a dead"
        " engine; not_metrics, malformed and truncated are pages that cannot be read.",
        [Query(most(failed, "target, reason"), "{{target}} {{reason}}")],
        unit="ops",
        minimum=0,
        fill=20,
        legend_values=("lastNotNull", "max"),
    )


def _skipped(targets: str) -> Panel:
    of = f"{{{targets}}}[$__rate_interval]"
    return timeseries(
        "Scrapes and skipped ones",
        "Scrapes per second, and those not begun because the one before was still under way.",
        [
            Query(most(f"rate(specwatch_scrapes_total{of})", TARGET), "{{target}}"),
            Query(most(f"rate(specwatch_scrapes_skipped_total{of})", TARGET), "{{target}} skipped"),
        ],
        unit="ops",
        minimum=0,
    )


def _lag(targets: str) -> Panel:
    success = least(f"specwatch_last_scrape_success_timestamp_seconds{{{targets}}}", TARGET)
    window = least(f"specwatch_last_window_timestamp_seconds{{{targets}}}", TARGET)
    return timeseries(
        "Lag",
        "Time since the last scrape that succeeded, and since the end of the newest minute that is"
        " closed, which is up to 2 minutes when all is well. Above the line decisions are made on"
        " what is old.",
        [
            Query(f"time() - {success}", "{{target}} scrape"),
            Query(f"time() - {window}", "{{target}} window"),
        ],
        unit="s",
        thresholds=((None, "transparent"), (180.0, "red")),
        minimum=0,
        legend_values=("lastNotNull", "max"),
    )


def _targets(targets: str) -> Panel:
    info = most(f"specwatch_target_info{{{targets}}}", "target, url, engine_version")
    interval = most(f"specwatch_scrape_interval_seconds{{{targets}}}", TARGET)
    return table(
        "What is watched",
        "Each target, where it is, the version of its engine as far as it says, and how often it is"
        " scraped.",
        [Query(f"{info} * on (target) group_left () {interval}")],
        columns=[
            Column("Target", "target"),
            Column("Address", "url"),
            Column("Engine", "engine_version"),
            Column("Interval", "A", "s"),
        ],
        sort_by="Target",
    )


def _written() -> Panel:
    over = "[$__rate_interval]"
    return timeseries(
        "Windows written and lost",
        "Windows per second that were written to the database, and that were given up because too"
        " many waited for it: those are lost to reports.",
        [
            Query(f"rate(specwatch_store_windows_written_total{over})", f"{_DAEMON} written"),
            Query(f"rate(specwatch_store_windows_dropped_total{over})", f"{_DAEMON} lost"),
            Query(
                f"rate(specwatch_store_verdicts_dropped_total{over})", f"{_DAEMON} verdicts lost"
            ),
        ],
        unit="ops",
        minimum=0,
    )


def _queued() -> Panel:
    return timeseries(
        "Waiting for the database",
        "Windows and changes of verdicts that wait to be written. A queue that grows is a database"
        " that is gone or too slow.",
        [
            Query("specwatch_store_windows_queued", f"{_DAEMON} windows"),
            Query("specwatch_store_verdicts_queued", f"{_DAEMON} verdicts"),
        ],
        unit="short",
        minimum=0,
        legend_values=("lastNotNull", "max"),
    )


def _behind() -> Panel:
    return timeseries(
        "Database behind",
        "For how long the database has failed, 0 while it works. Without it the guard does not act,"
        " as it cannot claim an action.",
        [Query("specwatch_store_behind_seconds", _DAEMON)],
        unit="s",
        thresholds=((None, "transparent"), (300.0, "red")),
        minimum=0,
        legend_values=("lastNotNull", "max"),
    )


def _defects() -> Panel:
    of = "[$__rate_interval]"
    return timeseries(
        "Failures within specwatch",
        "Defects of specwatch itself in judging, and writes to the database that failed, within the"
        " step of each point. The log has the reason.",
        [
            Query(f"increase(specwatch_judging_failures_total{of})", f"{_DAEMON} judging"),
            Query(
                f"increase(specwatch_store_write_failures_total{of})", f"{_DAEMON} database writes"
            ),
        ],
        unit="none",
        thresholds=_ONE_LINE,
        minimum=0,
        decimals=0,
        legend_values=("max",),
    )


def _alertmanagers() -> Panel:
    return state_timeline(
        "Alertmanagers",
        "Whether the last attempt to tell each Alertmanager succeeded. Empty where none is"
        " configured, or nothing was told yet.",
        [Query(least("specwatch_alertmanager_up", "url"), "{{url}}")],
        mappings=_REACHED,
    )


def _page_failures() -> Panel:
    counted = "rate(specwatch_alertmanager_failures_total[$__rate_interval])"
    return timeseries(
        "Failed pages by reason",
        "Attempts to tell an Alertmanager that failed, per second. They are repeated until one"
        " succeeds.",
        [Query(f"sum by (url, reason) ({counted})", "{{url}} {{reason}}")],
        unit="ops",
        minimum=0,
        legend_values=("lastNotNull", "max"),
    )


def _version() -> Panel:
    return stat(
        "Version",
        "Version of each daemon that runs. All of one fleet should be the same.",
        [Query("max by (version, daemon) (specwatch_build_info)", "{{version}}")],
        unit="none",
        text_mode="name",
        color_mode="none",
    )


def _memory() -> Panel:
    return timeseries(
        "Memory",
        "Resident memory of each daemon: about 100 MB with one target, and it must not grow.",
        [Query(f"process_resident_memory_bytes * {_MINE}", "{{daemon}} {{instance}}")],
        unit="bytes",
        minimum=0,
        legend_values=("lastNotNull", "max"),
    )


def _cpu() -> Panel:
    return timeseries(
        "CPU",
        "Share of one core that each daemon uses.",
        [
            Query(
                f"rate(process_cpu_seconds_total[$__rate_interval]) * {_MINE}",
                "{{daemon}} {{instance}}",
            )
        ],
        unit="percentunit",
        minimum=0,
        legend_values=("lastNotNull", "max"),
    )


def _files() -> Panel:
    return timeseries(
        "Open files",
        "Open files and sockets of each daemon, as a share of what the system allows it.",
        [Query(f"process_open_fds / process_max_fds * {_MINE}", "{{daemon}} {{instance}}")],
        unit="percentunit",
        thresholds=((None, "transparent"), (0.8, "red")),
        minimum=0,
        legend_values=("lastNotNull", "max"),
    )
