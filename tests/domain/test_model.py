"""Load bins, and what the values of the vocabulary promise."""

from __future__ import annotations

import pytest

from specwatch.domain.model import (
    LOAD_BINS,
    Batch,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Tally,
    Window,
    load_bin,
    load_bin_label,
)


def test_the_labels_of_the_load_bins():
    assert [load_bin_label(index) for index in range(len(LOAD_BINS))] == [
        "1",
        "2",
        "3-4",
        "5-8",
        "9-16",
        "17-32",
        "33-64",
        "65+",
    ]


@pytest.mark.parametrize(
    ("concurrency", "label"),
    [
        (0.01, "1"),
        (1, "1"),
        (1.49, "1"),
        (1.51, "2"),
        (2.49, "2"),
        (2.51, "3-4"),
        (4.49, "3-4"),
        (4.51, "5-8"),
        (8.49, "5-8"),
        (8.51, "9-16"),
        (16.49, "9-16"),
        (16.51, "17-32"),
        (32.49, "17-32"),
        (32.51, "33-64"),
        (64.49, "33-64"),
        (64.51, "65+"),
        (1e9, "65+"),
    ],
)
def test_a_mean_belongs_to_the_bin_of_the_nearest_number_of_requests(concurrency, label):
    bin_ = load_bin(concurrency)
    assert bin_ is not None
    assert load_bin_label(bin_) == label


@pytest.mark.parametrize("concurrency", [None, 0.0, -1.0])
def test_an_idle_or_unknown_server_is_in_no_bin(concurrency):
    assert load_bin(concurrency) is None


def test_means_are_unknown_where_nothing_was_sampled():
    assert (Gauges().running_mean, Gauges().waiting_mean, Gauges().concurrency) == (None,) * 3
    idle = Gauges(sampled_seconds=60.0)
    assert (idle.running_mean, idle.waiting_mean, idle.concurrency) == (0.0, 0.0, None)


def test_the_bin_of_a_window_is_that_of_its_busy_time():
    gauges = Gauges(sampled_seconds=60.0, busy_seconds=10.0, running_seconds=80.0)
    window = Window(SeriesId("d", "t", "m"), 0, 60, Mode.ON, Tally(), gauges)
    assert window.load_bin == load_bin(8)
    assert list(Batch((window,), None)) == [window]


@pytest.mark.parametrize(
    ("drafts", "server_drafts", "coverage"),
    [(5, 10, 0.5), (0, 10, 0.0), (5, 0, None), (5, None, None), (None, 10, None)],
)
def test_coverage_is_the_share_of_the_servers_drafts(drafts, server_drafts, coverage):
    window = Window(
        SeriesId("d", "t", "m"),
        0,
        60,
        Mode.ON,
        Tally(),
        server_drafts=server_drafts,
        source_drafts=drafts,
    )
    assert window.coverage == coverage


def test_a_histogram_needs_a_count_for_each_bucket():
    with pytest.raises(ValueError, match="2 bounds need 3 counts, got 2"):
        Histogram((1.0, 2.0), (1, 2), 1.0)
    assert Histogram((1.0,), (1, 2), 1.0).count == 3
