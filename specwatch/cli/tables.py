"""Targets and temperature buckets as lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from specwatch.cli.terminal import row
from specwatch.domain import buckets
from specwatch.domain.model import ALL_TEMPERATURES, METHODS
from specwatch.scrape.coverage import leading_reasons, share_derived
from specwatch.wording import figures, speculation
from specwatch.wording.speculation import MODE_NOT_KNOWN, MODE_REMEDY
from specwatch.wording.text import LONGEST_SENTENCE, shown, wrapped

Lines = Iterator[tuple[str, str]]
"""Texts and their styles."""

_COLUMNS = {
    "temp": 9, "acceptance": 10, "tok/step": 8, "requests": 8, "TTFT p50": 8, "p99": 7,
    "TPOT p50": 8, " p99": 7,
}  # fmt: skip
"""Headers and widths; with two spaces between them, 79 columns."""

_BUCKET_COLUMNS = {
    "temp": 9, "share": 5, "drafts": 6, "accept": 6, "length": 6, "P10/50/90 %": 11,
    "TTFT": 7, "p99": 7, "TPOT": 7, " p99": 7,
}  # fmt: skip
"""Headers and widths; with a space between them, 80 columns."""
_MEASURED_COLUMNS = ["faster" if name == "length" else name for name in _BUCKET_COLUMNS]
_LEAST_DERIVED = 0.005
_MOST_PENDING = 5
_URGENT = ("critical", "warning")


def in_breach(target: dict[str, Any]) -> bool:
    """Whether a rule of which somebody has to know is in breach."""
    return any(
        finding["verdict"] == "breach" and finding["severity"] in _URGENT
        for finding in target["decision"]["findings"]
    )


def recent_lines(target: dict[str, Any], now: float) -> Lines:
    """Yield lines and their styles for the last minutes of a target as the API gives it.

    ``now`` is the Unix time of the daemon.
    """
    recent = sorted(target["recent"], key=lambda window: window["model_name"])
    told = set()
    for model, group in groupby(recent, key=lambda window: str(window["model_name"])):
        told.add(model)
        windows = list(group)
        whole = [one for one in windows if one["temperature"] == ALL_TEMPERATURES]
        yield from _model(model, target["models"].get(model), whole or windows)
        yield from _decision(model, target, (whole or [None])[0], now)
        yield _line(list(_COLUMNS)), "dim"
        for window in whole or windows:
            yield _line(_cells(window)), ""
        yield from _tap(model, target, [one for one in windows if one not in whole])
    judged = {each["model_name"] for each in target["decision"]["findings"]}
    for model in sorted({*target["models"], *judged} - told):
        yield shown(model), "bold"
        if model in target["models"]:
            yield (
                (
                    f"speculation {target['models'][model]};"
                    " no whole minute seen since the last start or switch"
                ),
                "",
            )
        yield from _decision(model, target, None, now)


def _decision(
    model: str, target: dict[str, Any], window: dict[str, Any] | None, now: float
) -> Lines:
    """Whether speculation pays for a model, and what the rules and objectives say of it."""
    found = target["decision"]
    if target["models"].get(model) == "unknown":
        yield from wrapped(f"It is {MODE_NOT_KNOWN}. {MODE_REMEDY}", "yellow")
    if target["models"].get(model) != "off":
        yield from _pay_lines(found["models"].get(model), window)
    yield from _rule_lines([one for one in found["findings"] if one["model_name"] == model], now)
    slos = (one for one in found["slos"] if one["model_name"] == model)
    yield from _slo_lines(slos, found["goodput"].get(model, {}))


def _model(model: str, mode: str | None, windows: list[dict[str, Any]]) -> Lines:
    yield shown(model), "bold"
    first = windows[0]
    facts = [
        f"speculation {mode or first['mode']}",
        f"last {figures.span(first['length'])}: {figures.number(first['running_mean'], 1)} running",
        f"KV cache up to {figures.percent(first['kv_cache_usage_max'])}",
    ]
    if first["preemptions"]:
        facts.append(figures.counted(first["preemptions"], "preemption"))
    yield ", ".join(fact for fact in facts if figures.UNKNOWN not in fact.split()), ""


def _cells(window: dict[str, Any]) -> list[str]:
    ttft, tpot = window["ttft"], window["tpot"]
    return [
        shown(window["temperature"], _COLUMNS["temp"]),
        figures.percent(window["acceptance_rate"]),
        figures.number(window["mean_acceptance_length"], 2),
        figures.number(sum(window["requests"].values())),
        figures.quantile(ttft, "p50"),
        figures.quantile(ttft, "p99"),
        figures.quantile(tpot, "p50"),
        figures.quantile(tpot, "p99"),
    ]


def _line(cells: list[str]) -> str:
    widths = list(_COLUMNS.values())
    right = (f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
    return row([f"{cells[0]:{widths[0]}}", *right], "  ")


def _tap(model: str, target: dict[str, Any], windows: list[dict[str, Any]]) -> Lines:
    """What is known by temperature, and how well."""
    tap = target["tap"]
    seen = tap["models"].get(model)
    trouble = [one for one in tap["trouble"] if one["model_name"] == model]
    if seen is not None:
        yield from coverage_lines(seen)
    elif not tap["source"] and target["models"].get(model) != "off":
        yield "tap: none: temperatures unknown (specwatch tap flags shows what to add)", ""
    for one in trouble:
        yield f"tap: {shown(one['text'], LONGEST_SENTENCE)}", "red"
    drafts = sum(window["drafts"] or 0 for window in windows)
    speedups = _speedups(target["decision"]["models"].get(model))
    shares = [
        {
            **one,
            "share": (one["drafts"] or 0) / drafts if drafts else None,
            "speedup": speedups.get(one["temperature"]),
        }
        for one in windows
    ]
    yield from bucket_lines(sorted(shares, key=lambda one: buckets.order_of(one["temperature"])))


def trouble_lines(tap: dict[str, Any]) -> Lines:
    """Yield lines about what is wrong with the tap of a target as a whole."""
    for one in tap["trouble"]:
        if not one["model_name"]:
            yield f"tap: {shown(one['text'], LONGEST_SENTENCE)}", "red"


def coverage_lines(seen: dict[str, Any]) -> Lines:
    """Yield lines about how much a tap saw of a model, and what it could not."""
    who = shown(seen["source"])
    if seen["coverage"] is None:
        yield f"{who}: {figures.number(seen['drafts'])} drafts seen, the server counted none", ""
    else:
        yield f"{who}: covers {figures.percent(seen['coverage'])} of drafts", ""
    for count, reason in leading_reasons(seen["uncovered"]):
        said = f"  not covered: {figures.counted(count, 'request')}, {reason}"
        yield from wrapped(said)
    derived = share_derived(seen["records"])
    if derived >= _LEAST_DERIVED:
        said = f"  of {derived:.0%} of requests the acceptance is derived: {METHODS['derived']}"
        yield from wrapped(said)


def _speedups(known: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The measured speedups of a model by temperature."""
    return {} if known is None else {each["temperature"]: each for each in known["buckets"]}


def bucket_lines(rows: list[dict[str, Any]]) -> Lines:
    """Yield a table of temperature buckets: a header, then one line each.

    ``P10/50/90 %`` are quantiles of single requests' acceptance; TTFT and TPOT stand for P50.
    Where a speedup was measured it takes the place of the mean acceptance length, and buckets that
    lose are red.
    """
    if not rows:
        return
    measured = any(one.get("speedup") for one in rows)
    yield _bucket_line(_MEASURED_COLUMNS if measured else list(_BUCKET_COLUMNS)), "dim"
    for one in rows:
        speedup = one.get("speedup")
        style = "red" if speedup and speedup["loses"] else ""
        yield _bucket_line(_bucket_cells(one, measured=measured)), style


def _bucket_cells(one: dict[str, Any], *, measured: bool) -> list[str]:
    ttft, tpot, speedup = one["ttft"], one["tpot"], one.get("speedup")
    times = f"{speedup['speedup']['value']:.2f}x" if speedup else figures.UNKNOWN
    return [
        shown(one["temperature"], _BUCKET_COLUMNS["temp"]),
        figures.UNKNOWN if one["share"] is None else f"{one['share']:.0%}",
        figures.compact(one["drafts"]),
        figures.percent(one["acceptance_rate"]),
        times if measured else figures.number(one["mean_acceptance_length"], 2),
        figures.percents(one["request_acceptance"], ("p10", "p50", "p90")),
        figures.quantile(ttft, "p50"),
        figures.quantile(ttft, "p99"),
        figures.quantile(tpot, "p50"),
        figures.quantile(tpot, "p99"),
    ]


def _bucket_line(cells: list[str]) -> str:
    widths = list(_BUCKET_COLUMNS.values())
    right = (f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
    return row([f"{cells[0]:{widths[0]}}", *right])


def _pay_lines(known: dict[str, Any] | None, window: dict[str, Any] | None) -> Lines:
    """Yield the speedup of a model and its break-even line at the load of a window.

    Both as the API gives them; nothing where nothing was generated with speculation.
    """
    if known is None or (known["speedup"] is None and not known["minutes"]):
        return
    yield from wrapped(speculation.speedup(known))
    yield from wrapped(speculation.break_even(known, window))
    best = speculation.best_k(known)
    if best is not None:
        yield from wrapped(best)


def _rule_lines(findings: list[dict[str, Any]], now: float) -> Lines:
    """Yield what the rules say of one model: breaches, what may become one, and how many pass."""
    breaches = [finding for finding in findings if finding["verdict"] == "breach"]
    for finding in sorted(breaches, key=lambda one: one["since"]):
        style = "red" if finding["severity"] in _URGENT else "yellow"
        yield from wrapped(f"breach: {speculation.confirmed(finding, now)}", style)
    for finding in list(filter(speculation.may_become, findings))[:_MOST_PENDING]:
        yield from wrapped(f"pending: {speculation.pending(finding, now)}", "dim")
    if findings:
        yield f"rules: {speculation.counts(findings)}", "dim"


def _slo_lines(slos: Iterable[dict[str, Any]], goodput: dict[str, Any]) -> Lines:
    """Yield the objectives of one model that had requests, and its goodput."""
    for slo in slos:
        sentence = speculation.objective(slo)
        if sentence is not None:
            style = "red" if slo["budget_left"] < 0 else ""
            yield from wrapped(f"objective {shown(slo['name'])}: {sentence}", style)
    met = speculation.goodput(goodput)
    if met is not None:
        yield from wrapped(f"goodput: {met}")
