"""Results of other people's benchmarks: as vLLM 0.32 and AIPerf 0.13 wrote them, and variations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.baseline import BaselineKey, Origin
from specwatch.domain.baseline_points import Point
from specwatch.domain.model import load_bin
from specwatch.errors import ConfigError
from specwatch.lab.loadtest import imported_results
from specwatch.lab.loadtest.imported_results import read

DATA = Path(__file__).parents[1] / "data" / "bench"
DETAILED, MEANS, DRAFT, AIPERF = (
    json.loads((DATA / f"{name}.json").read_text())
    for name in ("vllm-0.32-detailed", "vllm-0.32-means", "vllm-0.32-draft", "aiperf-0.13")
)
KEY = BaselineKey("chat", "tiny")
NAN, INFINITY = float("nan"), float("inf")


def one(document: object, *, concurrency: float | None = None) -> imported_results.Result:
    (result,) = read(json.dumps(document), "r.json", concurrency=concurrency)
    return result


def without(document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def changed(document: Any, key: str, value: object) -> Any:
    """A copy with another value at a place such as ``itls.2.3``; the same where there is none."""
    first, _, rest = key.partition(".")
    if isinstance(document, dict):
        return {**document, first: changed(document.get(first), rest, value) if rest else value}
    if isinstance(document, list) and first.isdigit() and int(first) < len(document):
        copy = list(document)
        copy[int(first)] = changed(copy[int(first)], rest, value) if rest else value
        return copy
    return document


def places(document: Any, within: str = "") -> Iterator[str]:
    """All places of a document, of lists the first two entries."""
    inner = document if isinstance(document, dict) else {}
    if isinstance(document, list):
        inner = dict(enumerate(document[:2]))
    for key, value in inner.items():
        yield f"{within}{key}"
        yield from places(value, f"{within}{key}.")


def sound_or_refused(text: str) -> None:
    """Reads a file; fails for another error than ConfigError, and for what is no measurement."""
    try:
        result = read(text, "r.json")
    except ConfigError:
        result = []
    for part in result:
        assert part.pieces
        assert load_bin(part.concurrency) is not None
        for number in (part.concurrency, *(one for piece in part.pieces for one in piece)):
            assert 0 < number < INFINITY


def pace(result: imported_results.Result) -> float:
    """Seconds a token, over all pieces."""
    return sum(seconds for seconds, _ in result.pieces) / sum(tokens for _, tokens in result.pieces)


def test_a_detailed_result_is_several_points() -> None:
    result = one(DETAILED)
    assert result.model_name == "tiny"
    assert result.ended == DETAILED["date"]
    assert len(result.pieces) == 10
    assert sum(tokens for _, tokens in result.pieces) == 40 * 11
    # All outputs are of one length, so that the mean over requests is that over tokens.
    assert pace(result) == pytest.approx(DETAILED["mean_tpot_ms"] / 1000, rel=1e-3)


def test_load_is_the_mean_number_of_requests_that_ran() -> None:
    """Time in requests over time (Little's law), not the limit that was set."""
    result = one(DETAILED).concurrency
    assert result == pytest.approx(sum(DETAILED["latencies"]) / DETAILED["duration"])
    assert 3 < result < 4
    assert one(DETAILED, concurrency=9).concurrency == 9


def test_a_result_without_details_is_one_point_from_its_latencies() -> None:
    result = one(MEANS)
    ((_, tokens),) = result.pieces
    assert tokens == 480 - 40
    assert pace(result) == pytest.approx(MEANS["mean_tpot_ms"] / 1000, rel=1e-3)


def test_a_result_of_an_older_version_is_one_point_from_its_mean_tpot() -> None:
    result = one(without(MEANS, "latencies", "queue_times", "failed"))
    assert result.concurrency == 4
    assert pace(result) == pytest.approx(MEANS["mean_tpot_ms"] / 1000)


def test_results_that_were_appended_are_read_one_by_one() -> None:
    lines = "\n".join(json.dumps(part) for part in (MEANS, DETAILED))
    assert [len(part.pieces) for part in read(lines, "r.json")] == [1, 10]


def test_a_result_of_aiperf_is_one_point() -> None:
    result = one(AIPERF)
    assert result.model_name == "tiny"
    assert result.ended == AIPERF["end_time"]
    assert result.concurrency == pytest.approx(AIPERF["effective_concurrency"]["avg"], rel=0.01)
    assert pace(result) == pytest.approx(AIPERF["inter_token_latency"]["avg"] / 1000, rel=1e-6)
    assert pace(one(without(AIPERF, "decode_duration"))) == pytest.approx(pace(result), rel=1e-6)


def test_points_have_the_time_of_the_end_and_count_by_token() -> None:
    (point,) = one(MEANS).points(end=1234.0)
    assert point == Point(1234.0, one(MEANS).concurrency, *one(MEANS).pieces[0], by_token=True)


def test_enough_points_are_a_baseline_and_too_few_are_named() -> None:
    many, few = one(DETAILED).points(1000.0), one(AIPERF).points(1000.0)
    (result,), (missing,) = imported_results.measurements(KEY, [*many, *few])
    assert (result.key, result.origin) == (KEY, Origin.IMPORTED)
    assert result.points == tuple(sorted(many))
    assert result.enough
    assert missing.startswith("too few samples at load 2: 1, and 5 are needed")


def test_several_results_of_one_load_are_enough_together() -> None:
    points = [one(MEANS).points(time)[0] for time in (1.0, 2.0, 3.0, 4.0, 5.0)]
    result, missing = imported_results.measurements(KEY, points)
    assert [len(part.points) for part in result] == [5]
    assert missing == []


TOGETHER = {**DETAILED, "itls": [gaps[::2] for gaps in DETAILED["itls"]]}
CHUNKS = {**AIPERF, "inter_chunk_latency": {"unit": "ms", "avg": 9, "count": 180}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (DRAFT, r"this run had speculation \(it has spec_decode_\* fields\)"),
        (TOGETHER, "this run had speculation .440 tokens after the first came in 240 pieces"),
        (
            {**AIPERF, "total_draft_tokens": {"avg": 9}},
            r"this run had speculation",
        ),
        (CHUNKS, "this run had speculation .360 tokens after the first came in 180 pieces"),
        ({"a": 1, "b": 2}, "found a, b; expected the JSON that `vllm bench serve"),
        ([1], "has no result; expected"),
        ({**MEANS, "completed": 480}, "480 requests with 480 tokens have no decoding"),
        ({**MEANS, "failed": 9}, "9 requests failed and 40 did not"),
        (without(MEANS, "latencies", "mean_tpot_ms"), "latencies and mean_tpot_ms are missing"),
        ({**without(MEANS, "latencies"), "max_concurrency": None}, "give --concurrency N"),
        (
            {**DETAILED, "ttfts": [0.1]},
            "found 40, 1, 40 and 40 entries, expected one entry for each",
        ),
        (
            without(AIPERF, "decode_duration", "inter_token_latency"),
            "and inter_token_latency are missing; profile with --streaming",
        ),
        (without(AIPERF, "request_latency"), "give --concurrency N"),
    ],
)
def test_what_cannot_be_a_baseline_is_refused_with_its_reason(
    document: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        read(json.dumps(document), "r.json")
    assert str(refused.value).startswith("r.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Successful requests: 40", r"r.json is not JSON .*; expected the JSON that"),
        ("[" * 100_000, "r.json is nested too deeply for a result; expected the JSON that"),
    ],
)
def test_text_that_is_not_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(text, "r.json")


ABOVE, COUNT = "a finite number above 0", "a finite number, not negative"
NO_LATENCIES = without(MEANS, "latencies")


@pytest.mark.parametrize(
    ("document", "key", "value", "result", "expected"),
    [
        (MEANS, "total_output_tokens", NAN, "NaN", COUNT),
        (MEANS, "total_output_tokens", 10**400, "1000", COUNT),
        (MEANS, "completed", "x", '"x"', COUNT),
        (MEANS, "completed", True, "true", COUNT),
        (MEANS, "duration", 0, "0", ABOVE),
        (MEANS, "latencies", 3, "3", "a list"),
        (MEANS, "latencies.1", "x", '"x"', COUNT),
        (MEANS, "latencies.0", -1.0, "-1.0", COUNT),
        (MEANS, "mean_ttft_ms", [], "a list", COUNT),
        (NO_LATENCIES, "mean_tpot_ms", INFINITY, "Infinity", COUNT),
        (MEANS, "model_id", {}, "an object", "text"),
        (MEANS, "model_id", "a\ud800", "", "text"),
        (MEANS, "date", 20250101, "20250101", "text"),
        (DETAILED, "itls.2", 7, "7", "a list"),
        (AIPERF, "input_config.models.items.0.name", 7, "7", "text"),
        (AIPERF, "decode_duration.sum", -1.0, "-1.0", ABOVE),
    ],
)
def test_an_impossible_value_is_refused_with_its_place_and_the_remedy(
    document: Mapping[str, Any], key: str, value: object, result: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        one(changed(document, key, value))
    text = str(refused.value)
    assert text.startswith(f"r.json: {key} is {result}")
    assert text.endswith(f": expected {expected}; give the unchanged file of a successful run")
    assert len(text) < 200


@pytest.mark.parametrize(
    ("document", "key"),
    [(MEANS, "duration"), (DETAILED, "itls.2.3"), (AIPERF, "request_count.avg")],
)
def test_a_missing_value_is_named(document: Mapping[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^r.json: {key} is missing; give the unchanged file"):
        one(changed(document, key, None))


@pytest.mark.parametrize(
    ("document", "derived"),
    [
        ({**MEANS, "mean_ttft_ms": 1e6}, "-39995.5 seconds of decoding"),
        ({**MEANS, "duration": 1e-300}, "e.3.. requests at once"),
        ({**MEANS, "latencies": [9e14, 9e14]}, r"1.57835e\+15 requests at once"),
        ({**DETAILED, "itls": [[0.0] * 11] * 40}, "0 seconds of decoding"),
        ({**DETAILED, "output_lens": [9e14] * 40}, "this run had speculation"),
    ],
)
def test_times_that_contradict_one_another_are_refused(
    document: Mapping[str, Any], derived: str
) -> None:
    with pytest.raises(ConfigError, match=derived):
        one(document)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([0, -1, 1e300, 1e-300, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
KEYS = sorted({key for part in (DETAILED, MEANS, AIPERF) for key in places(part)})


@given(st.sampled_from([DETAILED, MEANS, AIPERF, {}]), st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_values_in_a_result_are_valid_or_refused(
    document: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    for key, value in changes.items():
        document = changed(document, key, value)
    sound_or_refused(json.dumps(document))


@given(JSON.map(json.dumps) | st.text())
def test_any_file_is_a_result_or_refused(text: str) -> None:
    sound_or_refused(text)
