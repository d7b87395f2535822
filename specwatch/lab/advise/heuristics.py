"""Rules of thumb from published reports: sizes and formats of the pair, and traffic.

specwatch measured none of these; each finding cites its report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from specwatch.lab.advise.advice import Finding, Level, ServerPlan, Traffic, reported
from specwatch.lab.advise.candidate import Candidate
from specwatch.lab.advise.methods import LOOKUPS, SCHEDULED

_BILLION = 1e9
_SMALLER = "take a smaller draft of the same family"
_PROBE = "measure its acceptance first: specwatch probe"
_RATIOS: tuple[tuple[float, bool, Level, str, str, str], ...] = (
    (1, True, "wrong", "the draft is as large as the target, and cannot pay", "", _SMALLER),
    (5, False, "doubt", "too large a draft: 1:8 to 1:12 is usual", "F", _SMALLER),
    (8, False, "note", "a large draft: 1:8 to 1:12 is usual", "F", _PROBE),
    (12, True, "ok", "as with most general drafts, 1:8 to 1:12", "F", ""),
    (
        30,
        False,
        "ok",
        "between the 1:8 to 1:12 of one report and the 1:30 to 1:60 of another",
        "FT",
        "",
    ),
    # 0.5B for 32B, the pair named as most reliable, is 1:66 when counted exactly.
    (67, True, "ok", "in the range 1:30 to 1:60 reported for very small drafts", "T", ""),
    (80, True, "note", "1:70 is too small in one report, good in another", "FG", _PROBE),
    (
        150,
        True,
        "doubt",
        "1:140 was reported once, with 1.5 times the speed at low rate",
        "F",
        _PROBE,
    ),
    (math.inf, True, "doubt", "smaller than anything reported to work", "FT", _PROBE),
)
"""Ranges of target size / draft size: the end, whether it belongs to the range, level, text,
letters of the reports, remedy."""
_SMALL_DRAFT = 0.3e9
_LARGE_DRAFT = 3e9 / 1.05
_NEVER_GAINS = 3e9 * 1.05
"""Sizes may be 5 % off their round name."""
_RARELY_GAINS = 8.4e9
"""Models called 8B have up to 8.4 billion parameters."""
_FOUR_BITS = 6.0
"""Bits per weight below which a format counts as one of four bits, as embeddings keep theirs."""
_EIGHT_BITS = 12.0
_POINTS = "more than 5 points lost against the unquantized pair calls for another choice"
_ACCEPTANCE_BY_TEMPERATURE = ((0.0, 0.81), (0.4, 0.71), (0.8, 0.52), (1.0, 0.38))
"""One report's figures, of which only the shape carries over [F]."""
_COMPARE = "find where it crosses: specwatch bench compare"
_SEPARATE_SERVER = (
    "a separate server without speculation for that load, or let specwatch guard switch it off"
)
_PER_BATCH = (
    "; or measure num_speculative_tokens_per_batch_size (vLLM 0.24 and later), which drafts less as"
    " the batch grows, e.g. [[1, 8, 5], [9, 512, 2]]: with k = 0 the drafter still runs"
)


def parameters_text(count: int) -> str:
    """``70.6B``, ``494M``."""
    if count >= _BILLION:
        return f"{count / _BILLION:.3g}B"
    return f"{count / 1e6:.3g}M" if count >= 1e6 else f"{count / 1e3:.3g}K"


def size_findings(target: Candidate, draft: Candidate | None) -> Iterator[Finding]:
    """Findings on sizes, families and contexts; ``draft`` is a model by itself."""
    if target.total is not None:
        yield from _target_size(target, target.total)
    if draft is None:
        return
    if target.total is not None and draft.total is not None:
        yield from _draft_size(target.total, draft.total)
    families = target.family, draft.family
    if None not in families and families[0] == families[1]:
        text = f"both are of the {families[0]} family"
        yield Finding("pairing", "ok", text, source="their model types, or their names")
    elif None not in families:
        yield Finding(
            "pairing",
            "doubt",
            f"different families: {families[0]} and {families[1]}",
            "even with the same tokens they were trained on different text",
            reported("F"),
            f"take a draft of the {families[0]} family",
        )
    shapes = target.architecture, draft.architecture
    longest = [None if shape is None else shape.context for shape in shapes]
    if longest[0] is not None and longest[1] is not None and longest[1] < longest[0]:
        yield Finding(
            "pairing",
            "note",
            f"the draft was trained for {longest[1]:,} tokens, the target for {longest[0]:,}",
            "beyond the draft's length nothing is drafted, or drafts are not accepted",
            "their config.json",
        )


def _target_size(target: Candidate, total: int) -> Iterator[Finding]:
    text = f"the target has {parameters_text(total)} parameters ({target.size_source})"
    if total <= _NEVER_GAINS:
        yield Finding(
            "pairing",
            "doubt",
            f"{text}: targets of 3B and below never gained",
            "its steps are as cheap as drafting",
            reported("TGP"),
            "measure before it goes live: specwatch bench, with and without",
        )
    elif total <= _RARELY_GAINS:
        yield Finding(
            "pairing",
            "doubt",
            f"{text}: targets of 8B and below rarely gain",
            "no draft is both small enough for them and good enough",
            reported("TGP"),
            "n-gram lookup or an EAGLE head cost less than a draft model; measure both",
        )
    else:
        yield Finding("pairing", "ok", f"{text}: large enough to gain", source=reported("TGP"))
    if target.active is not None and target.active < total:
        yield Finding(
            "pairing",
            "note",
            f"the target is a mixture of experts: a token uses {parameters_text(target.active)}",
            "the cost of drafting is relative to those; each draft token may use other experts, so"
            " that verifying several tokens reads more weights than a plain step, which the"
            " expected speedups here do not include",
            "arithmetic",
        )


def _draft_size(target: int, draft: int) -> Iterator[Finding]:
    ratio = target / max(draft, 1)
    _, _, level, text, letters, remedy = next(
        row for row in _RATIOS if ratio < row[0] or (row[1] and ratio == row[0])
    )
    yield Finding(
        "pairing",
        level,
        f"size ratio 1:{ratio:.3g} ({parameters_text(draft)} for {parameters_text(target)}):"
        f" {text}",
        "a larger draft costs more, and more of its tokens are accepted",
        reported(letters) if letters else "arithmetic",
        remedy,
    )
    text = f"the draft has {parameters_text(draft)} parameters"
    if draft <= _SMALL_DRAFT:
        yield Finding(
            "pairing",
            "doubt",
            f"{text}: drafts of 0.3B and below collapse",
            "too few of their tokens are accepted to pay for drafting",
            reported("T"),
            "0.5B for 32B was the most reliable: measure with specwatch probe",
        )
    elif draft >= _LARGE_DRAFT:
        yield Finding(
            "pairing",
            "note",
            f"{text}: reports contradict each other",
            "3B and above cost too much in one [T]; another starts with 8B for 70B [F]",
            reported("TF"),
            "compare it with the next smaller one: specwatch bench compare",
        )


def quantization_findings(target: Candidate, draft: Candidate | None) -> Iterator[Finding]:
    """Findings on quantization and acceptance; none if neither model is quantized."""
    name, bits = target.quantization, target.bits
    if name is not None and bits is not None and bits < _FOUR_BITS:
        yield Finding(
            "quantization",
            "doubt",
            f"the target is quantized to about 4 bits ({name}), which hurts acceptance",
            f"INT4 more than INT8; {_POINTS}",
            reported("F"),
            "measure both on the same prompts (specwatch probe), or take 8 bits",
        )
    elif name is not None and bits is not None and bits < _EIGHT_BITS:
        yield Finding(
            "quantization",
            "note",
            f"the target is quantized to about 8 bits ({name}): acceptance may fall a little",
            _POINTS,
            reported("F"),
            "compare with the unquantized pair: specwatch probe on the same prompts",
        )
    if draft is None or draft.bits is None:
        return
    if draft.quantization is not None:
        text = f"the draft is quantized ({draft.quantization}), which hardly hurts acceptance"
        yield Finding("quantization", "ok", text, source=reported("F"))
    if name is not None and bits is not None and draft.bits > 1.5 * bits:
        yield Finding(
            "quantization",
            "note",
            f"the target is quantized ({name}) and the draft is not",
            "each draft token then costs more, relative to a step of the target",
            f"arithmetic; that quantizing a draft hardly hurts: {reported('F')}",
            "quantize the draft too: it hardly hurts",
        )


def traffic_findings(method: str, plan: ServerPlan, traffic: Traffic) -> Iterator[Finding]:
    """Findings on the traffic, for and against speculation by ``method``."""
    lookup = method in LOOKUPS
    if traffic.output_tokens is not None:
        yield _answers(traffic.output_tokens)
    if traffic.tool_calls and lookup:
        yield _use(
            "note",
            "tool calls: short answers in a loop, where TTFT matters",
            "lookup adds nothing to TTFT, and arguments often repeat the prompt",
            "TP",
        )
    elif traffic.tool_calls:
        yield _use(
            "doubt",
            "tool calls: TTFT rises by 30 to 80 ms, for each call in a loop",
            "the draft prefills the prompt before the first token",
            "T",
            "n-gram lookup has no prefill; or send this traffic to a server without speculation",
        )
    if traffic.latency == "ttft":
        yield _use(
            "doubt",
            "TTFT is what matters, and speculation improves TPOT only",
            "" if lookup else "with a draft TTFT rises by 30 to 80 ms [T]",
            "F" if lookup else "FT",
            "leave it off, or measure TTFT at P99: specwatch bench compare",
        )
    elif traffic.latency == "tpot":
        yield _use("ok", "TPOT is what matters: that is what speculation improves")
    elif traffic.latency == "throughput":
        yield _use(
            "note",
            "throughput is what matters: reports go both ways",
            "1.4 to 1.8 times slower at a high rate [F]; 20 to 27 % more at its peak in one tuned"
            " set-up [P]",
            "FP",
            "measure at the real concurrency: specwatch bench compare",
        )
    if traffic.temperatures:
        yield temperature_finding(median_temperature(traffic.temperatures))
        frequent = [temperature for temperature, share in traffic.temperatures if share >= 0.1]
        if frequent and frequent[-1] - frequent[0] > 0.5:
            yield _use(
                "doubt",
                f"temperatures from {frequent[0]:g} to {frequent[-1]:g} share one server",
                "they share the verification too: P50 improves while P99 gets worse, and the mean"
                " acceptance hides the requests that become slower",
                "F",
                "use separate servers; specwatch shows the speedup of each temperature",
            )
    if traffic.workload is not None:
        yield _workload(lookup, traffic.workload)
    if traffic.saturated:
        yield _use(
            "doubt",
            "the GPU is saturated: leave it off",
            "verifying drafts needs compute that is not idle then: 1.4 to 1.8 times slower at a"
            " high rate",
            "F",
            _high_load_remedy(method, plan),
        )
    if traffic.concurrency is not None:
        yield _concurrency(method, plan, traffic.concurrency, traffic.workload == "code")
    if plan.context is not None and plan.context >= 32_768:
        yield _use(
            "note",
            f"contexts of up to {plan.context:,} tokens",
            "long contexts need memory that a draft takes, and a draft prefills them too",
            "FT",
            "see below how many requests still fit",
        )


def _use(
    level: Level, text: str, reason: str = "", letters: str = "F", remedy: str = ""
) -> Finding:
    return Finding("use", level, text, reason, reported(letters), remedy)


def _answers(tokens: int) -> Finding:
    if tokens <= 20:
        return _use(
            "doubt",
            f"answers of {tokens} tokens: 10 to 20 tokens barely gain",
            "most of their time is before the first token, which gets longer",
            "P",
            "leave speculation off for this traffic",
        )
    if tokens <= 50:
        return _use(
            "doubt",
            f"answers of {tokens} tokens: gains need more than about 50",
            letters="P",
            remedy="compare the latency of requests, not TPOT: specwatch bench compare",
        )
    return _use("ok", f"answers of {tokens} tokens are long enough to gain", letters="P")


def temperature_finding(temperature: float) -> Finding:
    """The finding on a median temperature."""
    points = _ACCEPTANCE_BY_TEMPERATURE
    acceptance = points[-1][1]
    for (low, first), (high, second) in pairwise(points):
        if temperature <= high:
            acceptance = first + (second - first) * (temperature - low) / (high - low)
            break
    reason = f"{acceptance:.0%} acceptance at that temperature in one report"
    remedy = "measure acceptance there first: specwatch probe"
    text = f"median temperature {temperature:g}"
    if temperature > 0.7:
        return _use("doubt", f"{text}: leave speculation off above 0.7", reason, "F", remedy)
    if temperature > 0.5:
        return _use("note", f"{text}: above 0.5 acceptance falls fast", reason, "F", remedy)
    return _use("ok", f"{text}: predictable text", reason)


def median_temperature(mix: tuple[tuple[float, float], ...]) -> float:
    """The median temperature of the traffic; ``mix`` is ascending."""
    total = 0.0
    for temperature, share in mix:
        total += share
        if total >= 0.5 - 1e-9:
            return temperature
    return mix[-1][0]


def _workload(lookup: bool, workload: str) -> Finding:
    if workload == "creative":
        return _use(
            "doubt",
            "creative text: acceptance of 40 to 50 % was reported",
            "below 50 % speculation adds latency [F]",
            "GF",
            "measure with your own prompts: specwatch probe --prompts FILE",
        )
    if workload == "chat" and lookup:
        return _use(
            "doubt",
            "chat: lookup pays if output repeats its input, which is rare in chat",
            letters="TPF",
            remedy="compare with a draft model or an EAGLE head",
        )
    if workload == "chat":
        return _use("ok", "chat: 1.5 to 2.5 times faster at low load in reports", letters="PF")
    if lookup:
        fast = "2.8 times faster at 1 request/s" if workload == "summarization" else ""
        return _use("ok", f"{workload}: output repeats its input, as lookup needs", fast, "TPF")
    return _use(
        "ok",
        f"{workload}: predictable text",
        "if output repeats its input, n-gram lookup needs no memory and no prefill",
        "TPF",
        "compare with --method ngram",
    )


def _concurrency(method: str, plan: ServerPlan, requests: int, is_code: bool) -> Finding:
    if requests >= 16:
        return _use(
            "doubt",
            f"{requests} requests at once: worth it was 2 to 8 for chat, 1 to 2 for code",
            "at 16 there was no difference, with speculation switched off from 16 on [T]",
            "T",
            _high_load_remedy(method, plan),
        )
    if requests > 8:
        text = f"{requests} requests at once: worth it was 2 to 8 for chat"
        return _use("note", text, letters="T", remedy=_COMPARE)
    if is_code and requests > 2:
        text = f"{requests} requests at once: for code completion 1 to 2 was worth it"
        return _use("note", text, letters="T", remedy=_COMPARE)
    return _use("ok", f"{requests} requests at once: a moderate load", letters="TF")


def _high_load_remedy(method: str, plan: ServerPlan) -> str:
    if plan.server != "vllm":
        return "measure at that load: specwatch bench compare"
    if plan.speculation.get("num_speculative_tokens_per_batch_size"):
        return "k decreases with the batch already: check in specwatch status that it does"
    tested = method in SCHEDULED and plan.data_parallel == 1
    return _SEPARATE_SERVER + (_PER_BATCH if tested else "")
