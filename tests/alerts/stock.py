"""Cases for the alerts on stock vLLM metrics."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from specwatch.config.rules import Slo
from specwatch.generate.alerts import objectives, stock_groups
from specwatch.generate.alerts.rules import render
from specwatch.guard.state import Cause
from tests.alerts.promtool import Case, Firing, Value, World, name_of, series

INSTANCE, JOB = "gpu-1:8000", "vllm"
WHOSE = {"job": JOB, "instance": INSTANCE, "model_name": "llama"}
SLOS = (
    Slo(name="ttft", metric="ttft", threshold="500ms", objective="99%"),
    Slo(name="one", metric="e2e", threshold="1s", objective="99%"),
    Slo(name="odd", metric="tpot", threshold="60ms", objective="90%"),
)
SERVER = f"llama on {INSTANCE}"
A_MINUTE = 60
"""Requests a minute."""
TPOT = "vllm:request_time_per_output_token_seconds"


def of(name: str, **labels: str) -> str:
    """A series of the server, as Prometheus stores it."""
    return series(name, **{**WHOSE, "engine": "0", **labels})


def counting(a_minute: float, last: int = 240) -> str:
    return f"0+{a_minute:g}x{last}"


def observed(
    family: str, shares: Mapping[str, float], a_minute: float = A_MINUTE
) -> dict[str, Value]:
    """A histogram: the share of the observations up to each bound."""
    buckets: dict[str, Value] = {
        of(f"{family}_bucket", le=le): counting(a_minute * share)
        for le, share in {**shares, "+Inf": 1.0}.items()
    }
    return {**buckets, of(f"{family}_count"): counting(a_minute)}


def drafting(acceptance: float, drafts: float = 600) -> dict[str, Value]:
    """Four draft tokens each, so many drafts a minute."""
    return {
        of("vllm:spec_decode_num_drafts_total"): counting(drafts),
        of("vllm:spec_decode_num_draft_tokens_total"): counting(4 * drafts),
        of("vllm:spec_decode_num_accepted_tokens_total"): counting(4 * drafts * acceptance),
    }


def healthy() -> dict[str, Value]:
    return {
        **drafting(0.7),
        of("vllm:request_success_total", finished_reason="stop"): counting(A_MINUTE),
        of("vllm:kv_cache_usage_perc"): 0.5,
        of("vllm:num_preemptions_total"): 0,
        **observed("vllm:time_to_first_token_seconds", {"0.25": 0.9, "0.5": 1}),
        **observed(TPOT, {"0.01": 0, "0.025": 0.9, "0.05": 1, "0.1": 1}),
        **observed("vllm:e2e_request_latency_seconds", {"0.8": 0.5, "1.0": 1}),
    }


def without(world: World, *prefixes: str) -> dict[str, Value]:
    return {key: value for key, value in world.items() if not name_of(key).startswith(prefixes)}


def changed(world: World, at: int, then: World, *, last: int = 240) -> dict[str, Value]:
    """From minute ``at`` on counters go on as in the other world, from where they are."""
    result: dict[str, Value] = {}
    for key, value in world.items():
        other = then.get(key)
        step, next_step = (_step(one) for one in (value, other))
        if isinstance(value, str) and isinstance(other, str):
            result[key] = f"0+{step:g}x{at} {step * at + next_step:g}+{next_step:g}x{last - at}"
        elif value == other:
            result[key] = value
        else:
            rest = "stale" if other is None else f"{other}x{last - at}"
            result[key] = (
                f"{counting(step, at) if isinstance(value, str) else f'{value}x{at}'} {rest}"
            )
    return result


def still(world: World) -> dict[str, Value]:
    """Nothing is counted."""
    return {key: counting(0) if isinstance(v, str) else v for key, v in world.items()}


def idle(world: World, at: int) -> dict[str, Value]:
    """Traffic ends then."""
    return changed(world, at, still(world))


def restarted(world: World, at: int) -> dict[str, Value]:
    """Gone for three minutes, and counting from nothing after that."""
    return {
        key: f"0+{_step(value):g}x{at} stale _x3 0+{_step(value):g}x240"
        if isinstance(value, str)
        else f"{value}x{at} stale _x3 {value}x240"
        for key, value in world.items()
    }


def _step(value: Value) -> float:
    return float(value.partition("+")[2].partition("x")[0]) if isinstance(value, str) else 0.0


def firing(description: str, **labels: str) -> tuple[Firing]:
    return (Firing({**WHOSE, **labels}, description),)


def slow(family: str, bound: str, share: float, a_minute: float = A_MINUTE) -> dict[str, Value]:
    """That share of the observations is above the bound."""
    return observed(family, {bound: 1 - share}, a_minute)


TTFT, E2E = "vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"
HEALTHY = healthy()
LOW = {**HEALTHY, **drafting(0.05)}
NONE = {**HEALTHY, **drafting(0.01)}
SQUEEZED = {
    **HEALTHY,
    of("vllm:kv_cache_usage_perc"): 0.95,
    of("vllm:num_preemptions_total"): counting(2),
}
SPECULATION = "vllm:spec_decode"
LOW_SAYS = f"{SERVER}: 5% of the draft tokens of the last 10 minutes were accepted, below 10%."
NONE_SAYS = f"{SERVER}: 1% of the draft tokens of the last 10 minutes were accepted, below 2%."
KV_SAYS = (
    f"{SERVER}: up to 95% of the KV cache was in use in the last 10 minutes, and requests were"
    " preempted."
)
OTHER = {**WHOSE, "instance": "gpu-2:8000"}


def elsewhere(world: World) -> dict[str, Value]:
    """The same of another server."""
    return {key.replace(INSTANCE, OTHER["instance"]): value for key, value in world.items()}


def low_acceptance() -> Iterator[Case]:
    name = "VllmSpeculationLowAcceptance"
    yield Case("few are accepted", LOW, name, 40, firing(LOW_SAYS))
    yield Case("not before it lasted", LOW, name, 8)
    yield Case("one server of two", {**LOW, **elsewhere(HEALTHY)}, name, 40, firing(LOW_SAYS))
    yield Case("enough are", HEALTHY, name, 40)
    yield Case("traffic has ended", idle(LOW, 30), name, 60)
    yield Case("there are few drafts", {**LOW, **drafting(0.05, drafts=30)}, name, 40)
    yield Case("off on purpose", without(LOW, SPECULATION), name, 40)
    yield Case("switched off meanwhile", changed(LOW, 30, without(LOW, SPECULATION)), name, 45)
    yield Case(
        "the V0 engine counts no drafts", without(LOW, "vllm:spec_decode_num_drafts"), name, 40
    )
    yield Case("a counter is missing", without(LOW, "vllm:spec_decode_num_accepted"), name, 40)
    yield Case("a restart resets the counters", restarted(HEALTHY, 30), name, 45)


def garbage() -> Iterator[Case]:
    name = "VllmSpeculationGarbage"
    yield Case("next to nothing is accepted", NONE, name, 30, firing(NONE_SAYS))
    yield Case("some are", LOW, name, 30)
    yield Case("traffic has ended", idle(NONE, 30), name, 60)
    yield Case("there are few drafts", {**NONE, **drafting(0.01, drafts=90)}, name, 30)
    yield Case("off on purpose", without(NONE, SPECULATION), name, 30)
    yield Case("a counter is missing", without(NONE, "vllm:spec_decode_num_accepted"), name, 30)
    yield Case("a restart resets the counters", restarted(HEALTHY, 30), name, 42)


def kv_squeeze() -> Iterator[Case]:
    name, old = "VllmKvSqueeze", of("vllm:gpu_cache_usage_perc")
    yield Case("the cache is full", SQUEEZED, name, 30, firing(KV_SAYS))
    older = {**without(SQUEEZED, "vllm:kv_cache"), old: 0.95}
    yield Case("the cache of an older vLLM is full", older, name, 30, firing(KV_SAYS))
    yield Case("a vLLM with both names", {**SQUEEZED, old: 0.95}, name, 30, firing(KV_SAYS))
    yield Case(
        "nobody had to give way", {**SQUEEZED, of("vllm:num_preemptions_total"): 7}, name, 30
    )
    yield Case("not full", {**SQUEEZED, of("vllm:kv_cache_usage_perc"): 0.85}, name, 30)
    yield Case("traffic has ended", idle(SQUEEZED, 30), name, 60)
    yield Case("off on purpose", without(SQUEEZED, SPECULATION), name, 30)
    yield Case("no preemptions are counted", without(SQUEEZED, "vllm:num_preempt"), name, 30)
    reset = {**SQUEEZED, of("vllm:num_preemptions_total"): "20x30 0x200"}
    yield Case("a restart resets the counter", reset, name, 42)


def guarded(cause: str, *, model: str = "llama", on: bool = False) -> dict[str, Value]:
    """What specwatch exports of the server once it is off, and why; no cause: not by the guard."""
    return {
        series("specwatch_speculation_enabled", target="chat", model_name=model): float(on),
        **{
            series("specwatch_guard_incident", target="chat", cause=each): float(each == cause)
            for each in Cause
        },
    }


def gone() -> Iterator[Case]:
    name, plain = "VllmSpeculationGone", without(HEALTHY, SPECULATION)
    text = (
        f"{SERVER}: it answered 1.8k requests in the last 30 minutes without speculation, with"
        " which it ran an hour ago."
    )
    off = changed(HEALTHY, 60, plain)
    yield Case("started without", off, name, 95, firing(text))
    yield Case("switched off by the guard", {**off, **guarded("rule")}, name, 95)
    yield Case("switched off by a person", {**off, **guarded("person")}, name, 95)
    yield Case("by hand, while specwatch watches", {**off, **guarded("")}, name, 95, firing(text))
    another = guarded("rule", model="qwen")
    yield Case("another model was switched off", {**off, **another}, name, 95, firing(text))
    begun = {**off, **guarded("rule", on=True)}
    yield Case("the guard has not switched it off", begun, name, 95, firing(text))
    yield Case("an hour later it is over", changed(HEALTHY, 60, plain), name, 140)
    yield Case("restarted with it", restarted(HEALTHY, 60), name, 95)
    yield Case("never had any", plain, name, 95)
    yield Case("nobody asks", changed(HEALTHY, 60, without(still(HEALTHY), SPECULATION)), name, 95)
    yield Case("the server is gone", changed(HEALTHY, 60, {}), name, 95)


def tail_widening() -> Iterator[Case]:
    name = "VllmTailWidening"
    wide = {**HEALTHY, **observed(TPOT, {"0.01": 0, "0.025": 0.9, "0.05": 0.95, "0.1": 1})}
    widened = changed(HEALTHY, 25, wide)
    text = (
        f"{SERVER}: P99 of the time per output token is 4.9 times the median in the last hour,"
        " more than 1.5 times what it was over the day before."
    )
    yield Case("slow requests became slower", widened, name, 84, firing(text))
    for other in ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"):
        older = {key.replace(TPOT, other): value for key, value in widened.items()}
        yield Case(f"{other} is not of requests", older, name, 84)
    yield Case("as wide as ever", wide, name, 84)
    yield Case("traffic has ended", idle(wide, 25), name, 84)
    few = {**widened, of("vllm:request_success_total", finished_reason="stop"): counting(5)}
    yield Case("there are few requests", few, name, 84)
    yield Case("off on purpose", without(widened, SPECULATION), name, 84)
    yield Case("no histogram", without(widened, TPOT), name, 84)
    yield Case("a restart resets the counters", restarted(HEALTHY, 25), name, 84)


def lasting(world: World) -> dict[str, Value]:
    """For days; of few series, because key costs time at key minute."""
    return {
        key: value.replace("x240", "x4000") if isinstance(value, str) else value
        for key, value in world.items()
    }


def burning(
    slo: str, whole: str, share: str, *windows: tuple[str, str], servers: str = "one"
) -> Sequence[Firing]:
    """All of these windows, with what is said of the objective."""
    return [
        Firing(
            {
                "job": JOB,
                "model_name": "llama",
                "slo": slo,
                "long": long,
                "short": short,
                "servers": servers,
            },
            f"llama (job vllm): {whole} in {share} of the requests of the last {long};"
            f" {'10' if slo == 'odd' else '1'}% may be.",
        )
        for long, short in windows
    ]


def slo_burn() -> Iterator[Case]:
    name = "VllmLatencySloBurn"
    first = "the time to the first token was above 500ms"
    fast, six, day = ("1h", "5m"), ("6h", "30m"), ("1d", "2h")
    half = {**HEALTHY, **slow(TTFT, "0.5", 0.5)}
    yield Case(
        "half are slow",
        lasting(slow(TTFT, "0.5", 0.5)),
        name,
        1300,
        burning("ttft", first, "50%", fast, six, day),
    )
    # Of another job, too: an alert of specwatch's may be of that one.
    another = {**half, of(f"{TTFT}_count", job="other", instance="gpu-2:8000"): counting(1)}
    firing = burning("ttft", first, "50%", fast, servers="several")
    yield Case("another server has a model of that name", another, name, 60, firing)
    some = lasting(slow(TTFT, "0.5", 0.1))
    yield Case("a tenth is slow", some, name, 300, burning("ttft", first, "10%", six))
    yield Case("an hour is known", half, name, 60, burning("ttft", first, "50%", fast))
    yield Case("hardly more than half an hour is", half, name, 40)
    yield Case("four minutes are", half, name, 4)
    yield Case(
        "speculation is the same to it",
        without(half, SPECULATION),
        name,
        60,
        burning("ttft", first, "50%", fast),
    )
    end = "the time to the end was above 1s"
    for form in ("1", "1.0"):
        world = {**without(HEALTHY, E2E), **slow(E2E, form, 0.5)}
        yield Case(f"a bound stored as {form}", world, name, 60, burning("one", end, "50%", fast))
    odd = (
        "the time per output token was above 75ms (for 60ms, which is not a bound of the histogram)"
    )
    yield Case(
        "a bound above the threshold",
        lasting(slow(TPOT, "0.075", 0.7)),
        name,
        300,
        burning("odd", odd, "70%", six),
    )
    between = observed(TPOT, {"0.05": 0.3, "0.075": 1})
    yield Case("what may be within the threshold is not slow", {**HEALTHY, **between}, name, 60)
    yield Case("few are slow", {**HEALTHY, **slow(TTFT, "0.5", 0.005)}, name, 20)
    over = changed(slow(TTFT, "0.5", 0.5), 290, HEALTHY, last=400)
    yield Case(
        "it is over",
        over,
        name,
        300,
        severity="critical",
        fires=burning("ttft", first, "48.66%", six),
    )
    yield Case("traffic has ended", idle(half, 10), name, 60)
    yield Case("few requests", {**HEALTHY, **slow(TTFT, "0.5", 1, a_minute=0.5)}, name, 60)
    yield Case("other bounds", {**without(HEALTHY, TTFT), **slow(TTFT, "0.7", 1)}, name, 20)
    yield Case("no histogram", without(half, TTFT), name, 20)
    yield Case("a restart resets the counters", restarted(HEALTHY, 30), name, 36)


CASES = [
    *low_acceptance(),
    *garbage(),
    *kv_squeeze(),
    *gone(),
    *tail_widening(),
    *slo_burn(),
]
GROUPS = stock_groups(SLOS)
LONGEST_QUICK = 100
"""Minutes of the longest case that costs little time."""


def quick_cases() -> Iterator[Case]:
    """Of each alert one that fires and two that must not."""
    for name in sorted({case.alert for case in CASES}):
        of_alert = [case for case in CASES if case.alert == name and case.at <= LONGEST_QUICK]
        yield next(case for case in of_alert if case.fires)
        yield from [case for case in of_alert if not case.fires][:2]


def run_promtool(*files: Path) -> None:
    """Have promtool run these test files; skips where there is none."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool (of Prometheus) is missing")
    ran = subprocess.run(
        ["promtool", "test", "rules", *files],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "GOGC": "400"},  # a third less time
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def odd_names_file(folder: Path, *names: str) -> Path:
    """A test file: each objective of these names has its alert, with the name as its text."""
    slos = [Slo(name=each, metric="ttft", threshold="500ms", objective="99%") for each in names]
    rules, tests = folder / "odd.rules.yml", folder / "odd.test.yml"
    rules.write_text(render(objectives.groups(slos), runbook_url="http://there", header=""))
    case = {
        "interval": "1m",
        "input_series": [
            {"series": each, "values": value} for each, value in slow(TTFT, "0.5", 0.5).items()
        ],
        "alert_rule_test": [
            {
                "eval_time": "50m",
                "alertname": "VllmLatencySloBurn",
                "exp_alerts": [_burning_fast(each) for each in names],
            }
        ],
    }
    tests.write_text(
        json.dumps({"rule_files": [rules.name], "evaluation_interval": "1m", "tests": [case]})
    )
    return tests


def _burning_fast(slo: str) -> dict[str, dict[str, str]]:
    (of_ttft,) = burning(slo, "the time to the first token was above 500ms", "50%", ("1h", "5m"))
    return {
        "exp_labels": {**of_ttft.labels, "severity": "critical"},
        "exp_annotations": {
            "summary": f"llama: the error budget of {slo} burns 14.4 times too fast",
            "description": of_ttft.description,
            "runbook_url": "http://there#vllmlatencysloburn",
        },
    }
