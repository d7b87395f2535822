"""Baselines from results of other benchmarks.

Read are ``vllm bench serve --save-result`` (one JSON object, or one a line with
``--append-result``; with ``--save-detailed`` the times of each request) and AIPerf's
``profile_export_aiperf.json``. Times are converted to seconds; in the files they are milliseconds,
except those of single requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, AliasPath, BaseModel, ConfigDict, Field, ValidationError

from specwatch.domain.baseline import BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point
from specwatch.domain.interval import LEAST_SAMPLES
from specwatch.domain.model import load_bin, load_bin_label
from specwatch.domain.units import quoted
from specwatch.errors import ConfigError
from specwatch.lab.loadtest.result_parts import cut

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
_MOST = 1e15
"""Larger than any number of a benchmark, and small enough for exact arithmetic."""


# --- the fields that are read


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("not printable")
    return text


_Count = Annotated[float, Field(ge=0, lt=_MOST, strict=True)]
_Measured = Annotated[float, Field(gt=0, lt=_MOST, strict=True)]
_Text = Annotated[str, Field(strict=True), AfterValidator(_printable)]
_EXPECTED = {
    "list_type": "a list",
    "string_type": "text",
    "string_unicode": "text",
    "value_error": "text",
    "greater_than": "a finite number above 0",
}
"""What is expected, by the type of an error; a number otherwise."""


class _VllmFields(BaseModel):
    # pydantic before 2.10 reserves names that begin with model_.
    model_config = ConfigDict(protected_namespaces=())

    completed: _Measured
    total_output_tokens: _Measured
    duration: _Measured
    failed: _Count | None = None
    max_concurrency: _Measured | None = None
    mean_ttft_ms: _Count | None = None
    mean_tpot_ms: _Count | None = None
    latencies: list[_Count] | None = None
    output_lens: list[_Count] | None = None
    ttfts: list[_Count] | None = None
    itls: list[list[_Count]] | None = None
    start_times: list[_Count] | None = None
    model_id: _Text | None = None
    date: _Text | None = None


def _at(first: str, *path: str | int, needed: bool = False) -> Any:
    """A field of an object in the result."""
    return Field(... if needed else None, validation_alias=AliasPath(first, *path))


class _AiperfFields(BaseModel):
    completed: _Measured = _at("request_count", "avg", needed=True)
    tokens: _Measured = _at("total_output_tokens", "avg", needed=True)
    chunks: _Count | None = _at("inter_chunk_latency", "count")
    decode: _Measured | None = _at("decode_duration", "sum")
    gap: _Measured | None = _at("inter_token_latency", "avg")
    busy: _Measured | None = _at("request_latency", "sum")
    duration: _Measured | None = _at("benchmark_duration", "avg")
    model: _Text | None = _at("input_config", "models", "items", 0, "name")
    end_time: _Text | None = None


_Fields = TypeVar("_Fields", bound=BaseModel)


def _validated(kind: type[_Fields], document: dict[str, Any], where: str) -> _Fields:
    """The fields of a result. Raises ConfigError with the place, the value and the remedy."""
    try:
        return kind.model_validate(document)
    except ValidationError as refused:
        error = refused.errors()[0]
    place, value = ".".join(map(str, error["loc"])), error["input"]
    if error["type"] == "missing" or value is None:
        raise ConfigError(f"{where}: {place} is missing; {_REMEDY}")
    shown = quoted(value)
    if isinstance(value, list | dict):
        shown = "a list" if isinstance(value, list) else "an object"
    expected = _EXPECTED.get(error["type"], "a finite number, not negative")
    raise ConfigError(f"{where}: {place} is {shown}: expected {expected}; {_REMEDY}")


# --- results


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
        if "aiperf_version" in document or "input_config" in document:
            results.append(_aiperf(document, place, concurrency))
        elif "total_output_tokens" in document and "completed" in document:
            results.append(_vllm(document, place, concurrency))
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


def _vllm(document: dict[str, Any], where: str, concurrency: float | None) -> Result:
    if any(name.startswith("spec_decode") for name in document):
        raise _speculated(where, "it has spec_decode_* fields")
    fields = _validated(_VllmFields, document, where)
    completed, tokens = fields.completed, fields.total_output_tokens
    _require_decoding(where, completed, tokens)
    requests = _requests(fields, where)
    failed = fields.failed or 0.0
    if failed > 0.05 * completed:
        raise ConfigError(
            f"{where}: {failed:g} requests failed and {completed:g} did not; repeat the benchmark"
        )
    latencies = fields.latencies or []
    busy = sum(latencies) or sum(request.ttft + request.decode for request in requests)
    load = concurrency or busy / fields.duration or fields.max_concurrency
    if load is None:
        raise ConfigError(
            f"{where}: it does not say how many requests ran at once (max_concurrency is null, and"
            " there are no latencies); give --concurrency N"
        )
    if requests:
        count = max(1, min(POINTS, len(requests) // _LEAST_REQUESTS))
        pieces = tuple(
            (sum(one.decode for one in group), float(sum(one.tokens for one in group)))
            for group in cut(requests, count)
        )
    elif latencies and fields.mean_ttft_ms:
        seconds = sum(latencies) - completed * fields.mean_ttft_ms / 1000
        pieces = ((seconds, tokens - completed),)
    elif fields.mean_tpot_ms:  # exact for outputs of equal length
        pieces = ((fields.mean_tpot_ms / 1000 * (tokens - completed), tokens - completed),)
    else:
        raise ConfigError(
            f"{where}: latencies and mean_tpot_ms are missing; benchmark an endpoint that streams"
        )
    return _checked(where, Result(fields.model_id or None, load, fields.date, pieces))


class _TimedRequest(NamedTuple):
    start: float
    ttft: float
    decode: float
    tokens: int
    """Without the first."""


def _requests(fields: _VllmFields, where: str) -> list[_TimedRequest]:
    """The requests of a detailed result, by their start; empty for other results."""
    lengths, ttfts, gaps = fields.output_lens, fields.ttfts, fields.itls
    if not (lengths and ttfts and gaps):
        return []
    starts = fields.start_times or list(map(float, range(len(lengths))))
    if not len(lengths) == len(ttfts) == len(gaps) == len(starts):
        raise ConfigError(
            f"{where}: output_lens, ttfts, itls and start_times are inconsistent:"
            f" found {len(lengths)}, {len(ttfts)}, {len(gaps)} and {len(starts)} entries, expected"
            f" one entry for each request; {_REMEDY}"
        )
    requests = [
        _TimedRequest(start, ttft, sum(itl), int(length) - 1)
        for start, ttft, itl, length in zip(starts, ttfts, gaps, lengths, strict=True)
        if length > 1
    ]
    pieces = sum(len(itl) for itl, length in zip(gaps, lengths, strict=True) if length)
    _require_single_tokens(where, sum(request.tokens for request in requests), pieces)
    return sorted(requests)


def _aiperf(document: dict[str, Any], where: str, concurrency: float | None) -> Result:
    if any(name.startswith(("spec_decode", "total_draft_tokens")) for name in document):
        raise _speculated(where, "it has spec_decode_* figures")
    fields = _validated(_AiperfFields, document, where)
    _require_decoding(where, fields.completed, fields.tokens)
    decoded = fields.tokens - fields.completed
    if fields.chunks is not None:
        _require_single_tokens(where, decoded, fields.chunks)
    decode = fields.decode or (None if fields.gap is None else fields.gap * decoded)
    if decode is None:
        raise ConfigError(
            f"{where}: decode_duration and inter_token_latency are missing; profile with"
            " --streaming"
        )
    load = concurrency
    if load is None and fields.busy is not None and fields.duration is not None:
        load = fields.busy / (1000 * fields.duration)
    if load is None:
        raise ConfigError(
            f"{where}: it does not say how many requests ran at once (request_latency and"
            " benchmark_duration are missing); give --concurrency N"
        )
    pieces = ((decode / 1000, decoded),)
    return _checked(where, Result(fields.model or None, load, fields.end_time, pieces))


def _require_decoding(where: str, completed: float, tokens: float) -> None:
    """Raise ConfigError if no request has a token after its first."""
    if tokens <= completed:
        raise ConfigError(
            f"{where}: {completed:g} requests with {tokens:g} tokens have no decoding; benchmark"
            " with longer outputs"
        )


def _require_single_tokens(where: str, tokens: float, pieces: float) -> None:
    """Raise ConfigError if tokens after the first came several at a time."""
    if pieces < _TOGETHER * tokens:
        raise _speculated(
            where, f"{tokens:g} tokens after the first came in {pieces:g} pieces, several at a time"
        )


def _speculated(where: str, seen: str) -> ConfigError:
    return ConfigError(
        f"{where}: this run had speculation ({seen}), and a baseline is measured without: repeat"
        " the benchmark on a server started without --speculative-config"
    )


def _checked(where: str, result: Result) -> Result:
    """The result. Raises ConfigError for an impossible load, time or number of tokens."""
    derived = [("requests at once", result.concurrency)]
    for seconds, tokens in result.pieces:
        derived += [("seconds of decoding", seconds), ("tokens", tokens)]
    for what, value in derived:
        if not 0 < value < _MOST:
            raise ConfigError(
                f"{where}: its times and counts are inconsistent: they result in {value:g} {what},"
                f" expected a finite number above 0; {_REMEDY}"
            )
    return result
