"""All targets together: who loses, who gains, and how much; the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from specwatch.domain.model import HOUR
from specwatch.report.estimates import Amount
from specwatch.report.model import ModelReport, Outcome, ReportFleet
from specwatch.wording import figures
from specwatch.wording.figures import counted, finite
from specwatch.wording.text import shown

_MEASURED: tuple[Outcome, ...] = ("loses", "even", "not_worth_it", "pays")
_OTHERS: dict[Outcome, tuple[str, str]] = {
    "even": ("shows no certain difference", "show no certain difference"),
    "unknown": ("is not measured", "are not measured"),
    "off": ("had it off", "had it off"),
    "no_traffic": ("had no traffic", "had no traffic"),
}
_MOST_NAMED = 2
_FEW_HOURS = 9.95
"""Hours below which they have a decimal."""


def worst_first(models: Iterable[ModelReport]) -> list[ModelReport]:
    """Those that lose, by their speedup; then the others that were measured, by theirs."""
    return sorted(models, key=_rank)


def _rank(model: ModelReport) -> tuple[int, float]:
    outcome, speedup = model.answer.outcome, model.answer.speedup
    value = None if speedup is None else finite(speedup.value)
    if outcome in _MEASURED and value is not None:
        return (0 if outcome == "loses" else 1), value
    return (3 if outcome == "no_traffic" else 2), 0.0


def to_change(models: Iterable[ModelReport]) -> list[ModelReport]:
    """Those with a recommended change, the one that saves most hours first."""
    some = [(hours, model) for model in models if (hours := _to_save(model))]
    return [model for _, model in sorted(some, key=lambda one: -one[0])]


def _to_save(model: ModelReport) -> float:
    """Hours that the recommended change saves, of GPUs where these are known."""
    gain = finite(model.answer.gain)
    if gain is None or gain <= 0:
        return 0.0
    return model.traffic.busy_on / HOUR * (gain / (1 + gain)) * (model.answer.gpus or 1)


def unit_of(models: Iterable[ModelReport]) -> str:
    """What several models are counted as: ``target``, or ``model`` if a target has several."""
    targets = [model.target for model in models]
    return "target" if len(set(targets)) == len(targets) else "model"


def fleet(models: Sequence[ModelReport]) -> ReportFleet:
    """The total of all models."""
    measured = [model for model in models if model.answer.hours_saved is not None]
    of_gpus = bool(measured) and all(model.answer.gpu_hours_saved for model in measured)
    losing = [model for model in models if model.answer.outcome == "loses"]
    gaining = [model for model in models if model.answer.outcome in ("pays", "not_worth_it")]
    saved, gained, lost = (
        sum(_hours(model, of_gpus=of_gpus) for model in some)
        for some in (measured, gaining, losing)
    )
    unit = "GPU hours" if of_gpus else "server hours"
    parts = []
    if losing:
        who, verb = _named(losing, models, "loses", "lose")
        parts.append(f"{who} {verb} {_amount(-lost)} {unit} with speculation")
    if gaining:
        who, verb = _named(gaining, models, "gains", "gain")
        by = "" if losing else f" {unit} with speculation"
        parts.append(f"{who} {verb} {_amount(gained)}{by}")
    outcomes = Counter(model.answer.outcome for model in models)
    for outcome, (one, several) in _OTHERS.items():
        if count := outcomes[outcome]:
            parts.append(f"{count} {one if count == 1 else several}")
    text = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    if losing and gaining:
        text += f": {_amount(abs(saved))} {'gained' if saved >= 0 else 'lost'} in all"
    if len(models) != 1:
        text = f"Of {counted(len(models), unit_of(models))}, {text}"
    return ReportFleet(
        sentence=f"{text}." if models else "No server was watched in this period.",
        models=len(models),
        gaining=len(gaining),
        losing=len(losing),
        unit="GPU hours" if of_gpus else "server hours",
        hours_saved=saved,
        hours_gained=max(gained, 0.0),
        hours_lost=max(-lost, 0.0),
    )


def _hours(model: ModelReport, *, of_gpus: bool) -> float:
    amount: Amount | None = model.answer.hours_saved
    if of_gpus:
        amount = model.answer.gpu_hours_saved
    return 0.0 if amount is None else finite(amount.value) or 0.0


def _amount(hours: float) -> str:
    return figures.number(max(hours, 0.0), 0 if hours >= _FEW_HOURS else 1)


def _named(
    some: Sequence[ModelReport], models: Sequence[ModelReport], one: str, several: str
) -> tuple[str, str]:
    """Who they are, and the verb."""
    verb = one if len(some) == 1 else several
    if len(some) <= _MOST_NAMED and unit_of(models) == "target":
        return " and ".join(shown(model.target) for model in worst_first(some)), verb
    return str(len(some)), verb
