"""Baselines from results of other benchmarks.

Read are ``vllm bench serve --save-result`` (one JSON object, or one a line with
``--append-result``; with ``--save-detailed`` the times of each request) and AIPerf's
``profile_export_aiperf.json``. Times are converted to seconds; in the files they are milliseconds,
except those of single requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from specwatch.domain.baseline import BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point
from specwatch.domain.interval import LEAST_SAMPLES
from specwatch.domain.model import load_bin, load_bin_label
from specwatch.errors import ConfigError
from specwatch.loadtest.common import cut
from specwatch.loadtest.json_fields import MOST, Fields

POINTS = 12
"""Points made from a result with the times of each request, at most."""
_LEAST_REQUESTS = 4
"""Requests of a point, at least."""
_TOGETHER = 0.7
"""Chunks for each token after the first, below which a server sent several tokens at a time; a busy
client receives about a tenth of them together too."""
_BOTH = (
    "expected the JSON that `vllm bench serve --save-result` or AIPerf"
    " (profile_export_aiperf.json) writes"
)
_REMEDY = "give the unchanged file of a successful run"


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a benchmark without speculation.

    ``ended`` is the time in the format of the file; ``pieces`` are seconds and tokens of decoding.
    """

    model_name: str | None
    concurrency: float
    ended: str | None
    pieces: tuple[tuple[float, float], ...]

    def points(self, end: float) -> tuple[Point, ...]:
        """As points of a baseline; ``end`` is Unix time."""
        return tuple(
            Point(end, self.concurrency, seconds, tokens) for seconds, tokens in self.pieces
        )


def read(text: str, where: str, *, concurrency: float | None = None) -> list[Result]:
    """The results in a file; ``concurrency`` replaces theirs.

    Raises ConfigError, beginning with ``where``, for another format, for an incomplete result, for
    one with failures, and for a run with speculation.
    """
    results = []
    for number, document in enumerate(_documents(text, where), start=1):
        place = where if number == 1 else f"{where}, result {number}"
        result = Fields(document, place, remedy=_REMEDY)
        if "aiperf_version" in document or "input_config" in document:
            results.append(_aiperf(result, concurrency))
        elif "total_output_tokens" in document and "completed" in document:
            results.append(_vllm(result, concurrency))
        else:
            keys = ", ".join(sorted(document)[:6])[:80] or "nothing"
            raise ConfigError(f"{place}: found {keys}; {_BOTH}")
    return results


def measurements(key: BaselineKey, points: Iterable[Point]) -> tuple[list[Measurement], list[str]]:
    """One measurement for each load bin with enough points, and what is missing, as words."""
    bins: dict[int, list[Point]] = {}
    for point in sorted(points):
        bin_ = load_bin(point.concurrency)
        if bin_ is not None:
            bins.setdefault(bin_, []).append(point)
    measured, missing = [], []
    for bin_, group in sorted(bins.items()):
        if len(group) >= LEAST_SAMPLES:
            measured.append(
                Measurement(key, bin_, Origin.IMPORTED, tuple(group), points_behind=len(group))
            )
        else:
            missing.append(
                f"too few samples at load {load_bin_label(bin_)}: {len(group)}, and {LEAST_SAMPLES}"
                " are needed for a baseline; run `vllm bench serve` with"
                " --save-detailed, or give the results of several runs"
            )
    return measured, missing


def _documents(text: str, where: str) -> list[dict[str, Any]]:
    try:
        try:
            documents = [json.loads(text)]
        except ValueError as error:
            try:
                documents = [json.loads(line) for line in text.splitlines() if line.strip()]
            except ValueError:
                raise ConfigError(f"{where} is not JSON ({error}); {_BOTH}") from None
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply for a result; {_BOTH}") from None
    if not documents or not all(isinstance(document, dict) for document in documents):
        raise ConfigError(f"{where} has no result; {_BOTH}")
    return documents


def _vllm(result: Fields, concurrency: float | None) -> Result:
    if any(name.startswith("spec_decode") for name in result.names()):
        raise _speculated(result.where, "it has spec_decode_* fields")
    requests = _requests(result)
    completed, tokens = _counted(result, "completed", "total_output_tokens")
    duration = result.needed("duration")
    failed = result.count("failed") or 0.0
    if failed > 0.05 * completed:
        raise ConfigError(
            f"{result.where}: {failed:g} requests failed and {completed:g} did not; repeat the"
            " benchmark"
        )
    latencies = result.counts("latencies")
    busy = sum(latencies) or sum(request.latency for request in requests)
    load = concurrency or busy / duration or result.measured("max_concurrency")
    if load is None:
        raise ConfigError(
            f"{result.where}: it does not say how many requests ran at once (max_concurrency is"
            " null, and there are no latencies); give --concurrency N"
        )
    if requests:
        pieces = _cut(requests)
    else:
        pieces = ((_decode_seconds(result, latencies, completed, tokens), tokens - completed),)
    return _checked(result, Result(result.text("model_id"), load, result.text("date"), pieces))


def _counted(result: Fields, *names: str) -> tuple[float, float]:
    """Numbers of requests and output tokens. Raises ConfigError if none is after the first."""
    completed, tokens = map(result.needed, names)
    if tokens <= completed:
        raise ConfigError(
            f"{result.where}: {completed:g} requests with {tokens:g} tokens have no decoding;"
            " benchmark with longer outputs"
        )
    return completed, tokens


def _checked(result: Fields, parsed: Result) -> Result:
    """The result; raises ConfigError for an impossible load, time or number of tokens."""
    derived = [("requests at once", parsed.concurrency)]
    for seconds, tokens in parsed.pieces:
        derived += [("seconds of decoding", seconds), ("tokens", tokens)]
    for what, value in derived:
        if not 0 < value < MOST:
            raise ConfigError(
                f"{result.where}: its times and counts are inconsistent: they result in"
                f" {value:g} {what}, expected a finite number above 0; {_REMEDY}"
            )
    return parsed


@dataclass(frozen=True, slots=True)
class _TimedRequest:
    start: float
    ttft: float
    decode: float
    tokens: int
    """Without the first."""

    @property
    def latency(self) -> float:
        return self.ttft + self.decode


def _requests(result: Fields) -> list[_TimedRequest]:
    """The requests of a detailed result, by their start; empty for other results."""
    lengths, ttfts = result.counts("output_lens"), result.counts("ttfts")
    gaps = result.lists("itls")
    if not (lengths and ttfts and gaps):
        return []
    starts = result.counts("start_times") or list(map(float, range(len(lengths))))
    if not len(lengths) == len(ttfts) == len(gaps) == len(starts):
        raise ConfigError(
            f"{result.where}: output_lens, ttfts, itls and start_times are inconsistent:"
            f" found {len(lengths)}, {len(ttfts)}, {len(gaps)} and {len(starts)} entries, expected"
            f" one entry for each request; {_REMEDY}"
        )
    requests = [
        _TimedRequest(start, ttft, sum(itl), int(length) - 1)
        for start, ttft, itl, length in zip(starts, ttfts, gaps, lengths, strict=True)
        if length > 1
    ]
    came = sum(len(itl) for itl, length in zip(gaps, lengths, strict=True) if length)
    after_first = sum(request.tokens for request in requests)
    if came < _TOGETHER * after_first:
        raise _together(result, after_first, came)
    return sorted(requests, key=lambda request: request.start)


def _cut(requests: Sequence[_TimedRequest]) -> tuple[tuple[float, float], ...]:
    count = max(1, min(POINTS, len(requests) // _LEAST_REQUESTS))
    return tuple(
        (sum(request.decode for request in group), float(sum(request.tokens for request in group)))
        for group in cut(requests, count)
    )


def _decode_seconds(
    result: Fields, latencies: Sequence[float], completed: float, tokens: float
) -> float:
    """Seconds between first and last token, over all requests.

    Without latencies it is the mean TPOT times the tokens, which is exact for outputs of equal
    length.
    """
    ttft, tpot = result.count("mean_ttft_ms"), result.count("mean_tpot_ms")
    if latencies and ttft:
        return sum(latencies) - completed * ttft / 1000
    if not tpot:
        raise ConfigError(
            f"{result.where}: latencies and mean_tpot_ms are missing; benchmark an endpoint that"
            " streams"
        )
    return tpot / 1000 * (tokens - completed)


def _aiperf(result: Fields, concurrency: float | None) -> Result:
    if any(name.startswith(("spec_decode", "total_draft_tokens")) for name in result.names()):
        raise _speculated(result.where, "it has spec_decode_* figures")
    completed, tokens = _counted(result, "request_count.avg", "total_output_tokens.avg")
    came = result.count("inter_chunk_latency.count")
    if came is not None and came < _TOGETHER * (tokens - completed):
        raise _together(result, tokens - completed, came)
    decode = result.measured("decode_duration.sum")
    if decode is None:
        gap = result.measured("inter_token_latency.avg")
        if gap is None:
            raise ConfigError(
                f"{result.where}: decode_duration and inter_token_latency are missing;"
                " profile with --streaming"
            )
        decode = gap * (tokens - completed)
    busy = result.measured("request_latency.sum")
    duration = result.measured("benchmark_duration.avg")
    load = concurrency
    if load is None and busy is not None and duration is not None:
        load = busy / (1000 * duration)
    if load is None:
        raise ConfigError(
            f"{result.where}: it does not say how many requests ran at once (request_latency and"
            " benchmark_duration are missing); give --concurrency N"
        )
    model = result.text("input_config.models.items.0.name")
    pieces = ((decode / 1000, tokens - completed),)
    return _checked(result, Result(model, load, result.text("end_time"), pieces))


def _together(result: Fields, tokens: float, pieces: float) -> ConfigError:
    seen = f"{tokens:g} tokens after the first came in {pieces:g} pieces, several at a time"
    return _speculated(result.where, seen)


def _speculated(where: str, seen: str) -> ConfigError:
    return ConfigError(
        f"{where}: this run had speculation ({seen}), and a baseline is measured without: repeat"
        " the benchmark on a server started without --speculative-config"
    )
