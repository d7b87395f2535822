"""Pages for tests: the captures, and a way to write others."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from specwatch.domain.model import Series
from specwatch.engines.sample_names import repeated, series_of
from specwatch.scrape.exposition import PageReader

Family = tuple[str, str, list[tuple[str, dict[str, str], float]]]
"""Name, type, and samples of ``(name, labels, value)``."""

Request = Mapping[str, Any]
"""What a tap counts of a request: see :func:`tap`."""

DATA = Path(__file__).parent / "data"
CAPTURES = sorted(DATA.glob("*.prom"))


def capture(name: str) -> bytes:
    """A page captured from a real vLLM 0.32, e.g. ``draft-k4.2``."""
    return (DATA / f"vllm-0.32-{name}.prom").read_bytes()


def llama_capture(name: str) -> bytes:
    """A page captured from a real llama-server (build 11434), e.g. ``draft-k4.1``."""
    return (DATA / f"llama-b11434-{name}.prom").read_bytes()


def faithful(name: str) -> bytes:
    """A page as an engine that was not captured writes it, e.g. ``vllm-0.10.2-draft-k2``."""
    return (DATA / "pages" / f"{name}.prom").read_bytes()


def multiprocess(page: bytes, engines: Sequence[str] = ("0",)) -> bytes:
    """The same page from Prometheus multi-process mode: no process, no ``_created`` series.

    Each of ``engines`` counts what the engine ``0`` of the page did.
    """
    lines = []
    for line in page.decode().splitlines():
        if "_created" in line or "process_" in line.partition("{")[0].partition(":")[0]:
            continue
        if 'engine="0"' in line:
            lines += [line.replace('engine="0"', f'engine="{engine}"') for engine in engines]
        else:
            lines.append(line)
    return ("\n".join(lines) + "\n").encode()


def ray(page: bytes, *workers: str) -> bytes:
    """What Ray makes of that page of vLLM, for workers of one node that count the same.

    After ``ray_wrappers.py`` of vLLM 0.32 and ``metrics_agent.py`` of Ray 2.48: no process, no
    counter that is zero, and each counter as a gauge without ``_total`` once more.
    """
    lines = []
    for line in page.decode().splitlines():
        sample, _, value = line.rpartition(" ")
        if line[0] == "#" or "_created{" in line or not sample.startswith("vllm:"):
            continue
        name, _, labels = sample.replace("vllm:", "ray_vllm_").removesuffix("}").partition("{")
        for worker in workers:
            own = (
                f'{labels},Component="core_worker",NodeAddress="10.0.0.7",ReplicaId="r-{worker}",'
                f'SessionName="session_{worker}",Version="2.48.0",WorkerId="{worker}"'
            )
            if not name.endswith("_total"):
                lines.append(f"{name}{{{own}}} {value}")
            elif float(value):
                lines.append(f"{name}{{{own}}} {value}")
                lines.append(f"{name.removesuffix('_total')}{{{own}}} {value}")
    return ("\n".join(lines) + "\n").encode()


def read(page: bytes | str) -> dict[Series, float]:
    """Our samples of a page, by a reader without memory."""
    return PageReader().read(page.encode() if isinstance(page, str) else page)


def oracle(page: str) -> tuple[dict[Series, float], int]:
    """Our samples of a page, by prometheus-client's parser, added up; how many there are."""
    samples: dict[Series, float] = {}
    ours = 0
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            series = series_of(sample.name, sample.labels)
            if series is None:
                continue
            ours += 1
            before = samples.get(series)
            samples[series] = (
                sample.value if before is None else repeated(series, before, sample.value)
            )
    return samples, ours


def page(*families: tuple[str, str, Iterable[tuple[str, Mapping[str, str], float]]]) -> str:
    """A page of ``(name, type, [(sample name, labels, value)])``; label values get escaped."""
    lines = []
    for name, kind, samples in families:
        lines += [f"# HELP {name} Help.", f"# TYPE {name} {kind}"]
        for sample, labels, value in samples:
            text = ",".join(f'{k}="{escape(v)}"' for k, v in labels.items())
            lines.append(f"{sample}{{{text}}} {value}" if text else f"{sample} {value}")
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """A label value as written between quotes."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def counter(name: str, value: float, **labels: str) -> Family:
    """One counter family with one sample, for :func:`page`."""
    return f"{name}_total", "counter", [(f"{name}_total", labels, value)]


def gauge(name: str, value: float, **labels: str) -> Family:
    """One gauge family with one sample, for :func:`page`."""
    return name, "gauge", [(name, labels, value)]


def histogram(
    name: str, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str
) -> Family:
    """One histogram family of counts per bucket (the last open-ended), for :func:`page`."""
    bucket = f"{name}_bucket"
    uppers = [*map(str, bounds), "+Inf"]
    samples = [
        (bucket, {**labels, "le": upper}, float(count))
        for upper, count in zip(uppers, accumulate(counts), strict=True)
    ]
    samples += [(f"{name}_count", labels, sum(counts)), (f"{name}_sum", labels, total)]
    return name, "histogram", samples


def speculation(
    drafts: float,
    per_position: Iterable[float],
    *,
    model: str = "m",
    k: int = 0,
    engine: str = "0",
) -> str:
    """The speculation families of a V1 page, consistent with each other."""
    positions = list(per_position)
    labels = {"engine": engine, "model_name": model}
    prefix = "vllm:spec_decode_num_"
    per_pos = f"{prefix}accepted_tokens_per_pos_total"
    return page(
        counter(f"{prefix}drafts", drafts, **labels),
        counter(f"{prefix}draft_tokens", drafts * (k or len(positions)), **labels),
        counter(f"{prefix}accepted_tokens", sum(positions), **labels),
        (
            per_pos,
            "counter",
            [(per_pos, {**labels, "position": str(i)}, v) for i, v in enumerate(positions)],
        ),
    )


def tap(*requests: Request, failures: float = 0.0) -> str:
    """The tap's families after these requests, which may be none, written by hand.

    Each request is ``{"model_name", "temperature"}`` and any of ``accepted`` (accepted tokens of
    each draft, or how many drafts had so many), ``k``, ``method``, ``uncovered``,
    ``finish_reason``, ``tokens``, ``ttft`` and ``tpot`` (seconds).
    """
    families: dict[str, Family] = {}
    buckets: dict[tuple[str, str], list[Request]] = {}
    for request in requests:
        buckets.setdefault((request["model_name"], request["temperature"]), []).append(request)
    for (model, temperature), members in buckets.items():
        labels = {"model_name": model, "temperature": temperature}
        for name, kind, samples in _tap_families(members, labels):
            families.setdefault(name, (name, kind, []))[2].extend(samples)
    failed = [("specwatch_tap_failures_total", {"stage": "response"}, failures)]
    return page(*families.values(), ("specwatch_tap_failures_total", "counter", failed))


def _tap_families(requests: Sequence[Request], labels: Mapping[str, str]) -> list[Family]:
    known = [
        (request.get("k", 4), Counter(request["accepted"]))
        for request in requests
        if "accepted" in request
    ]
    families: list[Family] = []
    if known:
        drafts: Counter[int] = Counter()
        for _, made in known:
            drafts.update(made)
        accepted = sum(kept * count for kept, count in drafts.items())
        draft_tokens = sum(k * made.total() for k, made in known)
        families += [
            counter("specwatch_drafts", drafts.total(), **labels),
            counter("specwatch_draft_tokens", draft_tokens, **labels),
            counter("specwatch_accepted_tokens", accepted, **labels),
        ]
        families += [
            counter(
                "specwatch_accepted_tokens_per_position",
                sum(count for kept, count in drafts.items() if kept > at),
                **labels,
                position=str(at),
            )
            for at in range(max(k for k, _ in known))
        ]
        rates = [
            sum(kept * count for kept, count in made.items()) / (k * made.total())
            for k, made in known
            if made.total()
        ]
        bounds = tuple(step / 20 for step in range(1, 21))
        families += _observed("specwatch_request_acceptance_ratio", bounds, rates, labels)
    for name, key, label in (
        ("specwatch_tap_records", "method", "method"),
        ("specwatch_tap_uncovered_requests", "uncovered", "reason"),
        ("specwatch_requests", "finish_reason", "finish_reason"),
    ):
        given = [request[key] for request in requests if key in request]
        families += [
            counter(name, given.count(value), **labels, **{label: value})
            for value in dict.fromkeys(given)
        ]
    tokens = sum(request.get("tokens", 0) for request in requests)
    if tokens:
        families.append(counter("specwatch_generation_tokens", tokens, **labels))
    for name, key in (
        ("specwatch_time_to_first_token_seconds", "ttft"),
        ("specwatch_time_per_output_token_seconds", "tpot"),
    ):
        seen = [request[key] for request in requests if key in request]
        families += _observed(name, (0.125, 0.5, 2.0), seen, labels)
    return families


def _observed(
    name: str, bounds: Sequence[float], seen: Sequence[float], labels: Mapping[str, str]
) -> list[Family]:
    if not seen:
        return []
    counts = [0] * (len(bounds) + 1)
    for value in seen:
        counts[bisect.bisect_left(bounds, value)] += 1
    return [histogram(name, bounds, counts, sum(seen), **labels)]
