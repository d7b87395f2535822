"""The framework of the field, "use it when" and "leave it off when", held against the traffic."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from specwatch.advise.asked import Asked, Hints
from specwatch.advise.methods import LOOKUPS, SCHEDULED
from specwatch.advise.model import Finding, Level
from specwatch.advise.sources import reported

_SHORT = 20
_BARELY = 50
_PREDICTABLE = 0.5
_CREATIVE = 0.7
_WIDE = 0.5
"""Distance of temperatures from which on traffic counts as mixed."""
_LEAST_SHARE = 0.1
_REPEATING = frozenset({"summarization", "rag", "code", "extraction"})
_LONG = 32_768
_ACCEPTANCE_BY_TEMPERATURE = ((0.0, 0.81), (0.4, 0.71), (0.8, 0.52), (1.0, 0.38))
"""One report's figures, of which only the shape carries over [F]."""
_BUSY = 16
_APART = (
    "a server of its own without speculation for that load, or let specwatch guard switch it off"
)
_PER_BATCH = (
    "; or measure num_speculative_tokens_per_batch_size (vLLM 0.24 and later), which drafts less as"
    " the batch grows, e.g. [[1, 8, 5], [9, 512, 2]]: with k = 0 the drafter still runs"
)


def findings(method: str, asked: Asked, hints: Hints) -> Iterator[Finding]:
    """Yield what the hints say for and against speculation by ``method``."""
    yield from _outputs(hints)
    yield from _tools(method, hints)
    yield from _latency(method, hints)
    yield from _temperatures(hints)
    yield from _workload(method, hints)
    yield from _load(method, asked, hints)
    if asked.context is not None and asked.context >= _LONG:
        yield _use(
            "note",
            f"contexts of up to {asked.context:,} tokens",
            "long contexts need the memory that a draft takes, and a draft prefills them too",
            "FT",
            "look at how many requests still fit below",
        )


def _use(
    level: Level, text: str, reason: str = "", letters: str = "F", remedy: str = ""
) -> Finding:
    return Finding(
        topic="use",
        level=level,
        text=text,
        reason=reason,
        source=reported(letters),
        remedy=remedy,
    )


def _outputs(hints: Hints) -> Iterator[Finding]:
    count = hints.output_tokens
    if count is None:
        return
    if count <= _SHORT:
        yield _use(
            "doubt",
            f"answers of {count} tokens: 10 to 20 tokens barely gain",
            "most of their time is before the first token, and that gets longer",
            "P",
            "leave speculation off for this traffic",
        )
    elif count <= _BARELY:
        yield _use(
            "doubt",
            f"answers of {count} tokens: gains need more than about {_BARELY}",
            letters="P",
            remedy="look at the whole latency, not at TPOT: specwatch bench compare",
        )
    else:
        yield _use("ok", f"answers of {count} tokens are long enough to gain", letters="P")


def _tools(method: str, hints: Hints) -> Iterator[Finding]:
    if not hints.tool_calls:
        return
    if method in LOOKUPS:
        yield _use(
            "note",
            "tool calls: short answers in a loop, where TTFT counts",
            "looking text up adds nothing to TTFT, and arguments often repeat the prompt",
            "TP",
        )
    else:
        yield _use(
            "doubt",
            "tool calls: TTFT rises by 30 to 80 ms, for each call in a loop",
            "the draft prefills the prompt before the first token",
            "T",
            "n-gram lookup has no prefill; or send this traffic to a server without speculation",
        )


def _latency(method: str, hints: Hints) -> Iterator[Finding]:
    if hints.latency == "ttft":
        yield _use(
            "doubt",
            "TTFT is what matters, and speculation improves TPOT only",
            "" if method in LOOKUPS else "with a draft TTFT rises by 30 to 80 ms [T]",
            "F" if method in LOOKUPS else "FT",
            "leave it off, or measure TTFT at P99: specwatch bench compare",
        )
    elif hints.latency == "tpot":
        yield _use("ok", "TPOT is what matters: that is what speculation improves")
    elif hints.latency == "throughput":
        yield _use(
            "note",
            "throughput is what matters: reports go both ways",
            "1.4 to 1.8 times slower at a high rate [F]; 20 to 27 % more at its peak in one tuned"
            " set-up [P]",
            "FP",
            "measure at the concurrency that there is: specwatch bench compare",
        )


def _temperatures(hints: Hints) -> Iterator[Finding]:
    mix = hints.temperatures
    if not mix:
        return
    yield of_temperature(median(mix))
    there = [temperature for temperature, share in mix if share >= _LEAST_SHARE]
    if len(there) > 1 and max(there) - min(there) > _WIDE:
        yield _use(
            "doubt",
            f"temperatures from {min(there):g} to {max(there):g} share one server",
            "they share the verification too: P50 gets better while P99 gets worse, and the mean"
            " acceptance hides the requests that lose",
            "F",
            "keep temperatures apart; specwatch shows the speedup of each one",
        )


def of_temperature(middle: float) -> Finding:
    """Return what a median temperature means."""
    expected = f"{acceptance_at(middle):.0%} acceptance at that temperature in one report"
    if middle > _CREATIVE:
        return _use(
            "doubt",
            f"median temperature {middle:g}: leave speculation off above {_CREATIVE:g}",
            expected,
            "F",
            "measure acceptance there first: specwatch probe",
        )
    if middle > _PREDICTABLE:
        return _use(
            "note",
            f"median temperature {middle:g}: above {_PREDICTABLE:g} acceptance falls fast",
            expected,
            "F",
            "measure acceptance there first: specwatch probe",
        )
    return _use("ok", f"median temperature {middle:g}: predictable text", expected)


def _workload(method: str, hints: Hints) -> Iterator[Finding]:
    if hints.workload is None:
        return
    if hints.workload == "creative":
        yield _use(
            "doubt",
            "creative text: acceptance of 40 to 50 % was reported",
            "below 50 % speculation adds latency [F]",
            "GF",
            "measure with your own prompts: specwatch probe --prompts FILE",
        )
    elif hints.workload in _REPEATING:
        yield _repeating(method, hints.workload)
    elif method in LOOKUPS:
        yield _use(
            "doubt",
            "chat: lookup pays where output repeats its input, which chat does little",
            letters="TPF",
            remedy="compare with a draft model or an EAGLE head",
        )
    else:
        yield _use("ok", "chat: 1.5 to 2.5 times faster at low load in reports", letters="PF")


def _repeating(method: str, workload: str) -> Finding:
    if method in LOOKUPS:
        fast = "2.8 times faster at 1 request/s" if workload == "summarization" else ""
        return _use("ok", f"{workload}: output repeats its input, as lookup needs", fast, "TPF")
    return _use(
        "ok",
        f"{workload}: predictable text",
        "where output repeats its input, n-gram lookup is free of memory and of prefill",
        "TPF",
        "compare with --method ngram",
    )


def _load(method: str, asked: Asked, hints: Hints) -> Iterator[Finding]:
    if hints.saturated:
        yield _use(
            "doubt",
            "the GPU is saturated: leave it off",
            "checking drafts takes arithmetic that is not idle then: 1.4 to 1.8 times slower at a"
            " high rate",
            "F",
            _remedy(method, asked),
        )
    if hints.concurrency is None:
        return
    if hints.concurrency >= _BUSY:
        yield _use(
            "doubt",
            f"{hints.concurrency} requests at once: worth it was 2 to 8 for chat, 1 to 2 for code",
            "at 16 there was no difference, with speculation switched off from 16 on [T]",
            "T",
            _remedy(method, asked),
        )
    elif hints.concurrency > 8:
        yield _use(
            "note",
            f"{hints.concurrency} requests at once: worth it was 2 to 8 for chat",
            letters="T",
            remedy="find where it crosses: specwatch bench compare",
        )
    elif hints.workload == "code" and hints.concurrency > 2:
        yield _use(
            "note",
            f"{hints.concurrency} requests at once: for code completion 1 to 2 was worth it",
            letters="T",
            remedy="find where it crosses: specwatch bench compare",
        )
    else:
        yield _use("ok", f"{hints.concurrency} requests at once: a moderate load", letters="TF")


def _remedy(method: str, asked: Asked) -> str:
    if asked.server != "vllm":
        return "measure at that load: specwatch bench compare"
    if asked.speculation.get("num_speculative_tokens_per_batch_size"):
        return "k falls with the batch already: see in specwatch status that it falls far enough"
    may = method in SCHEDULED and asked.data_parallel == 1
    return _APART + _PER_BATCH if may else _APART


def median(mix: tuple[tuple[float, float], ...]) -> float:
    """Return the temperature up to which half of the traffic lies."""
    total = 0.0
    for temperature, share in mix:
        total += share
        if total >= 0.5 - 1e-9:
            return temperature
    return mix[-1][0]


def acceptance_at(temperature: float) -> float:
    """Return the acceptance at a temperature that one report has, between its points [F]."""
    points = _ACCEPTANCE_BY_TEMPERATURE
    for (low, first), (high, second) in pairwise(points):
        if temperature <= high:
            return first + (second - first) * (temperature - low) / (high - low)
    return points[-1][1]
