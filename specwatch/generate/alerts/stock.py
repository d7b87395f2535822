"""Alerts on what vLLM itself exports, for people who have only Prometheus.

For vLLM 0.8.5 to 0.33 with its V1 engine; where a name changed, the newest that is there counts.
The time per output token of a request is there from 0.11 on; nothing else is taken for it, for
inter-token latency and what was called so before count steps, which may give several tokens.
What only a baseline or a temperature can tell is not here: whether speculation pays, and which
requests it pays for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specwatch.config.rules import Slo
from specwatch.domain.breakeven import DRAFT_COST_RATIO
from specwatch.generate.alerts import stock_slo
from specwatch.generate.alerts.rule import Alert, Group, Recording

LABELS = "job, instance, model_name"
_BY = f"by ({LABELS})"
_DRAFTS = "instance_model:vllm_spec_decode_drafts:rate10m"
_ACCEPTANCE = "instance_model:vllm_spec_decode_acceptance:ratio_rate10m"
_LENGTH = "instance_model:vllm_spec_decode_acceptance_length:mean_rate10m"
_TAIL = "instance_model:vllm_tpot_tail:ratio_rate1h"
_TAIL_BEFORE = "instance_model:vllm_tpot_tail:ratio_rate1d_before"
_REQUESTS = "instance_model:vllm_requests:increase1h"
_REQUESTS_BEFORE = "instance_model:vllm_requests:increase1d_before"
_TTFT = "vllm:time_to_first_token_seconds"
_TPOT = "vllm:request_time_per_output_token_seconds"
_KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_BEFORE = "[1d] offset 1h"
_WHOSE = "{{ $labels.model_name }} on {{ $labels.instance }}"
_SWITCHED_OFF = """\
unless on (model_name) (
  max by (target, model_name) (specwatch_speculation_enabled) == 0
  and on (target)
    max by (target) (specwatch_guard_incident) == 1
)"""
"""By the guard, or by a person through it; nothing where there is no specwatch."""


def groups(slos: Sequence[Slo]) -> tuple[Group, ...]:
    """Groups of rules; recording rules come before those that use them."""
    return (
        Group("vllm-speculation", (*_speculation_records(), *_speculation_alerts())),
        Group("vllm-tail", (*_tail_records(), _tail_widening()), interval="3m"),
        *stock_slo.groups(slos),
    )


def notes(slos: Sequence[Slo]) -> tuple[str, ...]:
    """What a reader must know of the objectives in the rules."""
    return tuple(stock_slo.notes(slos))


def _speculation_records() -> Iterator[Recording]:
    # The V0 engine adds running totals to its token counters, and has none of drafts.
    yield Recording(record=_DRAFTS, expr=_rate("vllm:spec_decode_num_drafts_total"))
    accepted = _rate("vllm:spec_decode_num_accepted_tokens_total")
    yield Recording(
        record=_ACCEPTANCE,
        expr=(
            f"{accepted}\n/ ({_rate('vllm:spec_decode_num_draft_tokens_total')} > 0)\n"
            f"and {_DRAFTS} > 0"
        ),
    )
    yield Recording(record=_LENGTH, expr=f"1 + {accepted}\n/ ({_DRAFTS} > 0)")
    for name, family in (("ttft", _TTFT), ("tpot", _TPOT)):
        for quantile in (0.5, 0.99):
            yield Recording(
                record=f"instance_model:vllm_{name}_seconds:p{quantile * 100:.0f}_rate10m",
                expr=_quantile(quantile, family, "[10m]"),
            )


def _tail_records() -> Iterator[Recording]:
    for record, window in ((_TAIL, "[1h]"), (_TAIL_BEFORE, _BEFORE)):
        slow, middle = (_quantile(each, _TPOT, window) for each in (0.99, 0.5))
        yield Recording(record=record, expr=f"({slow})\n/ ({middle})")
    for record, window in ((_REQUESTS, "[1h]"), (_REQUESTS_BEFORE, _BEFORE)):
        yield Recording(record=record, expr=_requests(window))


def _rate(counter: str) -> str:
    return f"sum {_BY} (rate({counter}[10m]))"


def _requests(window: str) -> str:
    return f"sum {_BY} (increase(vllm:request_success_total{window}))"


def _quantile(quantile: float, family: str, window: str) -> str:
    """In seconds; nothing while there are no observations."""
    counts = f"sum by ({LABELS}, le) (rate({family}_bucket{window}))"
    return f"histogram_quantile({quantile:g}, {counts}) >= 0"


def _drafted(least: int) -> str:
    """So many drafts at least in 10 minutes."""
    return f"{_DRAFTS} * 600 >= {least}"


def _speculation_alerts() -> Iterator[Alert]:
    yield _low_acceptance()
    yield _garbage()
    yield _kv_squeeze()
    yield _gone()


def _low_acceptance() -> Alert:
    return Alert(
        name="VllmSpeculationLowAcceptance",
        expr=f"{_ACCEPTANCE} < {DRAFT_COST_RATIO}\nand {_drafted(500)}",
        for_="10m",
        severity="warning",
        summary=f"{_WHOSE}: few draft tokens are accepted",
        description=(
            f"{_WHOSE}: {{{{ $value | humanizePercentage }}}} of the draft tokens of the last 10"
            f" minutes were accepted, below {DRAFT_COST_RATIO:.0%}."
        ),
        meaning=(
            "So little of what is drafted is kept that it costs more than it saves, if a draft"
            f" token costs {DRAFT_COST_RATIO:g} of a step of the target, as is assumed. Where the"
            " line really lies depends on the hardware, the draft and the load, and only a"
            " comparison with the same server without speculation shows it."
        ),
        look=(
            "Acceptance by position on the dashboard for stock vLLM metrics: does it fall from the"
            " first position on, or only at the last? Has the traffic changed (other prompts,"
            " higher temperatures), or the model or the draft?"
        ),
        do=(
            "Measure it: `specwatch calibrate` compares a server with speculation to one without."
            " Where only the last positions fail, draft fewer tokens. Where it loses, start the"
            " server without: `specwatch strip` gives the command."
        ),
    )


def _garbage() -> Alert:
    return Alert(
        name="VllmSpeculationGarbage",
        expr=f"{_ACCEPTANCE} < 0.02\nand {_drafted(1000)}",
        for_="5m",
        severity="critical",
        summary=f"{_WHOSE}: next to nothing of the draft is accepted",
        description=(
            f"{_WHOSE}: {{{{ $value | humanizePercentage }}}} of the draft tokens of the last 10"
            " minutes were accepted, below 2%."
        ),
        meaning=(
            "The draft guesses at random: its tokenizer or its vocabulary is not that of the"
            " model, its weights are of another model, or the model writes garbage. Each step costs"
            " more than without a draft, and gains nothing. That nearly all is accepted can be a"
            " loop, but without temperatures it cannot be told from easy text, and is no alert"
            " here."
        ),
        look=(
            "What the server was started with: model, draft, their revisions. Read some answers:"
            " are they text?"
        ),
        do=(
            "Start the server without speculation (`specwatch strip` gives the command), then put"
            " the right draft in place. Where the answers are garbage too, take the server out of"
            " traffic first."
        ),
    )


def _kv_squeeze() -> Alert:
    used = "\nor ".join(f"max {_BY} (max_over_time({each}[10m]))" for each in _KV)
    preempted = f"sum {_BY} (increase(vllm:num_preemptions_total[10m]))"
    return Alert(
        name="VllmKvSqueeze",
        expr=f"({used}) > 0.9\nand {preempted} > 0\nand {_drafted(100)}",
        for_="5m",
        severity="warning",
        summary=f"{_WHOSE}: the KV cache is full, and requests give way while it drafts",
        description=(
            f"{_WHOSE}: up to {{{{ $value | humanizePercentage }}}} of the KV cache was in use in"
            " the last 10 minutes, and requests were preempted."
        ),
        meaning=(
            "Requests are thrown out of the batch and computed again, for lack of KV cache. A draft"
            " model has its weights and its own cache in the same memory, and the tokens that are"
            " drafted need slots, too."
        ),
        look=(
            "Preemptions and requests waiting on the dashboard for stock vLLM metrics; the size of"
            " the cache in the server's log at its start, with the draft and without."
        ),
        do=(
            "Lower --max-num-seqs or --max-model-len, or give vLLM more memory with"
            " --gpu-memory-utilization. Else draft fewer tokens, take a smaller draft (n-gram needs"
            " no memory), or do without."
        ),
    )


def _gone() -> Alert:
    drafts = "vllm:spec_decode_num_drafts_total"
    return Alert(
        name="VllmSpeculationGone",
        expr=(
            f"{_requests('[30m]')} >= 20\nand count {_BY} ({drafts} offset 1h)\n"
            f"unless count {_BY} ({drafts})\n{_SWITCHED_OFF}"
        ),
        for_="15m",
        severity="info",
        summary=f"{_WHOSE}: it speculated an hour ago, and does no more",
        description=(
            f"{_WHOSE}: it answered {{{{ $value | humanize }}}} requests in the last 30 minutes"
            " without speculation, with which it ran an hour ago."
        ),
        meaning=(
            "The server was started anew without speculation. Whoever did that by hand knows; an"
            " hour after the change it is over by itself. Where the guard of specwatch switched it"
            " off, or a person by `specwatch guard disable`, this is silent, for all servers of the"
            " model."
        ),
        look="Who restarted the server, and with which command; its log at its start.",
        do="Nothing, if it was meant. Else put --speculative-config back and restart the server.",
    )


def _tail_widening() -> Alert:
    return Alert(
        name="VllmTailWidening",
        expr=(
            f"{_TAIL} > 1.5 * {_TAIL_BEFORE}\nand {_REQUESTS} >= 500\n"
            f"and {_REQUESTS_BEFORE} >= 500\n"
            f"and {_rate('vllm:spec_decode_num_drafts_total')} * 600 >= 100"
        ),
        for_="15m",
        severity="warning",
        summary=f"{_WHOSE}: slow requests are further from the median than the day before",
        description=(
            f"{_WHOSE}: P99 of the time per output token is {{{{ $value | humanize }}}} times the"
            " median in the last hour, more than 1.5 times what it was over the day before."
        ),
        meaning=(
            "Some requests have become much slower than most. Speculation does that where requests"
            " with a high acceptance share a batch with others that have a low one: those pay for"
            " drafts that are not kept. More load does it, too. Silent before vLLM 0.11, which does"
            " not tell the time per output token of a request."
        ),
        look=(
            "Running and waiting requests, and acceptance, against the same hour of yesterday;"
            " whether long prompts came in."
        ),
        do=(
            "Where the load is the same and acceptance is lower, see VllmSpeculationLowAcceptance."
            " Send requests of high temperature to servers without speculation."
        ),
    )
