"""Whether the status page is reliable: scrapes, the store, judging and Alertmanagers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specwatch.pages.status_model import unread
from specwatch.pages.status_view import in_order
from specwatch.status import DaemonStatus, PagerStatus, TargetStatus
from specwatch.wording import figures, lease
from specwatch.wording.text import LONGEST_SENTENCE, shown

_MOST_FAILING = 20
"""Targets that fail and are not shown in full."""


def scrapes(status: DaemonStatus, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """A row for each target that is named, and for others that fail: how reading it goes."""
    failing = [
        target.name
        for target in status.targets
        if (target.failure is not None or target.name in status.stuck) and target.name not in names
    ]
    among = {*names, *failing[:_MOST_FAILING]}
    return tuple(
        _scrapes(target, status)
        for target in in_order(status)
        if target.name in among and not target.pods
    )


def _scrapes(target: TargetStatus, status: DaemonStatus) -> tuple[str, ...]:
    now = status.now
    ago = None if target.last_success is None else now - target.last_success
    reasons = sorted(target.failures.items(), key=lambda item: (-item[1], item[0]))
    failed = ", ".join(
        f"{figures.number(count)} {shown(str(reason)).replace('_', ' ')}"
        for reason, count in reasons
        if count
    )
    covered = [model.coverage for model in target.tap.models.values() if model.coverage is not None]
    tapped = target.tap.source is not None or target.tap.models
    unknown = "not known yet" if tapped else "no tap"
    if unread(target, status.stuck, now) is not None:
        covered, unknown = [], figures.UNKNOWN
    return (
        shown(target.name),
        "never" if ago is None else f"{figures.span(ago)} ago",
        figures.number(target.scrapes),
        failed or "0",
        figures.number(target.skipped),
        figures.number(target.restarts),
        figures.percent(min(covered)) if covered else unknown,
    )


def store_lines(status: DaemonStatus) -> Iterator[tuple[str, bool]]:
    """Yield sentences on the store and on judging, and whether each is of something wrong."""
    store, judging = status.store, status.judging
    yield shown(store.where, LONGEST_SENTENCE), False
    facts = f"{figures.counted(store.written, 'window')} written"
    if store.queued:
        facts += f", {figures.number(store.queued)} waiting"
    yield facts, False
    if store.dropped:
        yield f"{figures.counted(store.dropped, 'window')} given up", True
    if store.damaged_files:
        yield f"{figures.damaged_files(store.damaged_files)}.", True
    if store.error:
        since = store.behind_since
        behind = "" if since is None else f" for {figures.span(status.now - since)}"
        yield f"The store fails{behind}: {shown(store.error, LONGEST_SENTENCE)}", True
    if judging.error:
        yield f"Changes of verdicts wait: {shown(judging.error, LONGEST_SENTENCE)}", True
    if judging.dropped:
        yield f"{figures.counted(judging.dropped, 'change')} of verdicts given up", True
    if judging.defects:
        yield (
            f"{figures.counted(judging.defects, 'failure')} of specwatch itself: see its log",
            True,
        )


def delivery_lines(status: DaemonStatus) -> Iterator[tuple[str, bool]]:
    """Yield the delivery of the report by each channel, and whether it fails."""
    for delivery in status.deliveries:
        sentence = f"Report by {shown(delivery.channel)}: "
        if delivery.undelivered:
            why = shown(delivery.error or "no reason is known", LONGEST_SENTENCE)
            yield f"{sentence}not delivered: {why}", True
        elif delivery.error is not None:
            yield f"{sentence}{shown(delivery.error, LONGEST_SENTENCE)}", True
        elif delivery.last_delivery is None:
            yield f"{sentence}none was sent yet", False
        else:
            yield (
                f"{sentence}delivered {figures.span(status.now - delivery.last_delivery)} ago",
                False,
            )


def source_lines(status: DaemonStatus) -> Iterator[tuple[str, bool]]:
    """Yield the state of each source of discovery, and whether something is wrong with it."""
    for source in status.discovery:
        wrong = source.failure is not None or bool(source.refused)
        yield f"Discovery by {figures.source_state(source, status.now)}", wrong


def pager_state(pager: PagerStatus, now: float) -> str:
    """How sending to an Alertmanager goes."""
    if pager.failing_since is not None:
        why = shown(pager.error or "it does not answer", LONGEST_SENTENCE)
        return f"failing for {figures.span(now - pager.failing_since)}: {why}"
    if pager.last_success is None:
        return "nothing sent yet"
    sentence = f"last sent {figures.span(now - pager.last_success)} ago"
    return f"{sentence}, has a change still to be sent" if pager.behind else sentence


def headline(status: DaemonStatus) -> tuple[str, ...]:
    """What is wrong with the whole, in sentences; none for nothing."""
    lines = list(lease.problems(status.lease))
    shown_lines = (*store_lines(status), *delivery_lines(status), *source_lines(status))
    lines += [line for line, wrong in shown_lines if wrong]
    lines += [
        f"Alertmanager {shown(pager.url, LONGEST_SENTENCE)}: {pager_state(pager, status.now)}"
        for pager in status.pagers
        if pager.failing_since is not None
    ]
    return tuple(lines)
