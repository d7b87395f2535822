"""How often and how long rules were in breach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from specwatch.report.model import Breach
from specwatch.rules.decisions import Decision


def breaches(
    decisions: Iterable[Decision], model_name: str, since: float, until: float
) -> tuple[Breach, ...]:
    """The breaches of one model that lie in ``since`` to ``until`` (Unix seconds), or reach in.

    ``decisions`` are changes of verdicts in any order, of all models; one that began the last
    breach before ``since`` has to be among them for it to be known. What several daemons found at
    once counts once. The longest come first.
    """
    scopes: dict[tuple[str, str], dict[str, list[Decision]]] = {}
    for each in sorted(decisions, key=attrgetter("at")):
        if each.model_name == model_name and each.at < until:
            daemons = scopes.setdefault((each.rule, each.temperature), {})
            daemons.setdefault(each.daemon, []).append(each)
    found = []
    for (rule, temperature), daemons in scopes.items():
        spans = _merged(span for changes in daemons.values() for span in _spans(changes, until))
        inside = [span for span in spans if span[1] > since]
        if not inside:
            continue
        begun = [each for own in daemons.values() for each in own if each.verdict == "breach"]
        found.append(
            Breach(
                rule=rule,
                temperature=temperature,
                severity=max(begun, key=attrgetter("at")).severity,
                count=len(inside),
                seconds=sum(end - max(begin, since) for begin, end in inside),
                last=inside[-1][0],
            )
        )
    return tuple(sorted(found, key=lambda each: (-each.seconds, each.rule, each.temperature)))


def _spans(changes: Sequence[Decision], until: float) -> list[tuple[float, float]]:
    """Begin and end of each breach of one scope and daemon; the last may last on."""
    found: list[tuple[float, float]] = []
    began: float | None = None
    for each in changes:
        if each.verdict == "breach":
            began = each.at if began is None else began
        elif began is not None:
            found.append((began, each.at))
            began = None
    return found if began is None else [*found, (began, until)]


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found
