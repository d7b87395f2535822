"""Scalars of the configuration mean what a person expects, or are refused with the remedy."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from datetime import UTC, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.buckets import order_of
from specwatch.domain.units import (
    ListenAddress,
    format_duration,
    format_size,
    masked_url,
    parse_duration,
    parse_edges,
    parse_gpus,
    parse_listen,
    parse_moment,
    parse_name,
    parse_server_url,
    parse_size,
)
from specwatch_tap.temperature import Buckets, bucket_labels
from tests.segments import segment


@given(st.integers(min_value=0, max_value=36_500 * 86_400_000))
def test_a_duration_that_is_written_reads_back(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("5s", 5), ("1.5s", 1.5), ("30m", 1800), ("1h30m", 5400), ("14d", 1209600)],
)
def test_durations_mean_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


INVALID = {
    (parse_duration, r"unit|not a duration|too long"): [
        "",
        "5",
        5,
        True,
        None,
        "-5s",
        "5 s",
        "5S",
        "30m1h",
        "5s5s",
        "1e3s",
        "s",
        "５s",
        "36501d",
        [],
    ],
    (parse_listen, r"address to listen on|no host|between its brackets|characters that no host"): [
        "9469",
        "::1:9469",
        "127.0.0.1",
        "[::1]",
        "[x]:1",
        "a b:1",
        ":1",
    ],
    (parse_edges, r"edge|ascend|list of numbers"): [
        [],
        [0, 0],
        [-1, 1],
        [math.nan],
        [True],
        ["0"],
        "0",
        list(range(21)),
    ],
    (parse_gpus, "GPU"): ["0", 0, {}, [-1], [1024], [True], [0.0], ["0"], [1, 0, 1]],
}


@pytest.mark.parametrize(
    ("parse", "problem", "value"),
    [(*parser, value) for parser, values in INVALID.items() for value in values],
)
def test_an_invalid_scalar_is_refused(
    parse: Callable[[object], object], problem: str, value: object
) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(value)


def test_gpus_are_chosen_by_a_word_or_by_their_indices() -> None:
    assert [parse_gpus(word) for word in ("auto", "none")] == ["auto", "none"]
    assert parse_gpus([1, 0, 1023]) == (1, 0, 1023)


@pytest.mark.parametrize(
    ("text", "moment"),
    [("1700000000.5", 1_700_000_000.5), ("30m", 8200.0), ("0s", 10_000.0), ("-1e300", -1e300)],
)
def test_a_moment_is_a_unix_time_or_a_duration_before_now(text: str, moment: float) -> None:
    assert parse_moment(text, now=10_000.0) == moment


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-19", 1_795_046_400.0),
        ("2026-11-19T14:30", 1_795_098_600.0),
        ("2026-11-19 14:30:05", 1_795_098_605.0),
        ("2026-11-19T14:30:00Z", 1_795_098_600.0),
        ("2026-11-19 14:30 UTC", 1_795_098_600.0),
        ("2026-11-19T14:30:00.5+01:00", 1_795_095_000.5),
    ],
)
def test_a_moment_is_an_iso_8601_date_or_time_too(text: str, moment: float) -> None:
    assert parse_moment(text, now=10_000.0, zone=UTC) == moment


def test_a_date_without_an_offset_is_in_the_given_time_zone() -> None:
    east = timezone(timedelta(hours=2))
    assert parse_moment("2026-11-19T14:30", 0.0, east) == 1_795_098_600.0 - 7200
    assert parse_moment("2026-11-19T14:30Z", 0.0, east) == 1_795_098_600.0


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "nan", "-inf", "1e400", "5 s", "30m ago", "2026-13-01", "2026-11-19T25:00"],
)
def test_an_invalid_moment_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not a date or time such as 1970-01-01T02:46, a durat"
    ):
        parse_moment(text, now=10_000.0)


@given(st.integers(min_value=0, max_value=1 << 40))
def test_a_size_that_is_written_reads_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.text())
def test_any_text_is_a_value_or_a_clear_refusal(text: str) -> None:
    """Parsers raise ValueError and nothing else, whatever they are given."""
    for scalar in (parse_duration, parse_size, parse_listen, parse_name, parse_server_url):
        with contextlib.suppress(ValueError):
            assert scalar(text) is not None


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:9469", "127.0.0.1", 9469), ("[::1]:0", "::1", 0), ("localhost:1", "localhost", 1)],
)
def test_an_address_to_listen_on_reads_back(text: str, host: str, port: int) -> None:
    assert parse_listen(text) == ListenAddress(host, port)
    assert str(ListenAddress(host, port)) == text


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql+psycopg://u@h:5432/d?x=a", "postgresql+psycopg://u@h:5432/d?x=a"),
        ("postgresql://u:p@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p/@:p@h/d", "postgresql://u:***@h/d"),
        ("postgresql://h/d?user=u&password=p&x=y", "postgresql://h/d?user=u&password=***&x=y"),
        ("sqlite:////var/lib/s.db", "sqlite:////var/lib/s.db"),
        ("u:p@h", "u:***@h"),
    ],
)
def test_a_password_in_a_url_is_masked(url: str, masked: str) -> None:
    assert masked_url(url) == masked


def test_buckets_are_labelled_as_in_the_glossary() -> None:
    assert bucket_labels((0.0, 0.3, 0.7, 1.0)) == ("0", "(0,0.3]", "(0.3,0.7]", "(0.7,1]", ">1")
    assert bucket_labels((0.5,)) == ("[0,0.5]", ">0.5")


def test_buckets_are_in_ascending_order_before_other_labels_and_the_unknown() -> None:
    labels = ["unknown", "other", "0", "(0.7,1]", ">1", "another", "(0,0.3]", "[0,0.5]"]
    ordered = ["0", "(0,0.3]", "[0,0.5]", "(0.7,1]", ">1", "another", "other", "unknown"]
    assert sorted(labels, key=lambda label: order_of(segment(label))) == ordered


@pytest.mark.parametrize(
    ("temperature", "label"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1e-9, "(0,0.3]"),
        (0.01, "(0,0.3]"),
        (0.3, "(0,0.3]"),
        (0.30001, "(0.3,0.7]"),
        (1.0, "(0.7,1]"),
        (2, ">1"),
        (None, "unknown"),
        (math.nan, "unknown"),
        (-0.1, "unknown"),
        (math.inf, "unknown"),
    ],
)
def test_a_temperature_falls_into_the_bucket_that_holds_it(
    temperature: float | None, label: str
) -> None:
    assert Buckets((0.0, 0.3, 0.7, 1.0)).of(temperature) == label


def test_temperatures_below_a_hundredth_count_as_a_hundredth() -> None:
    assert Buckets((0.0, 0.005, 1.0)).of(0.001) == "(0.005,1]"
