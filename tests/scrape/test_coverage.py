"""What a tap saw of each model, and when that is too little."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from specwatch.domain.model import MINUTE, Mode, SeriesId, Source, Tally, Window
from specwatch.domain.tap_keys import UNCOVERED
from specwatch.scrape.coverage import (
    Coverage,
    coverages,
    leading_reasons,
    share_derived,
    trouble_of,
)
from specwatch.scrape.taps import LEAVES_OUT
from specwatch.wording.text import LONGEST_SENTENCE
from tests.segments import segment


def window(temperature: str, drafts: int | None, *, model: str = "m", **counts: object) -> Window:
    source = Source.SERVER if temperature == "all" else Source.TAP
    tally = Tally(drafts=drafts, **counts)  # type: ignore[arg-type]
    series = SeriesId("d", "t", model, segment(temperature))
    return Window(series, 0, MINUTE, Mode.ON, tally, source=source)


def seen(drafts: int, server: int | None, **uncovered: int) -> Coverage:
    return Coverage(Source.TAP, drafts, server, {"record": 5}, uncovered)


def test_coverage_adds_the_buckets_up_against_the_server() -> None:
    """A bucket has windows only for minutes in which it counted: the server's are of all."""
    coverage = coverages(
        [
            window("all", 100),
            msgspec.structs.replace(
                window("0", 30, records={"record": 3}), server_drafts=40, source_drafts=30
            ),
            window(">1", 40, records={"record": 1, "derived": 2}, uncovered={"several": 4}),
            window("unknown", None, uncovered={"several": 1, "failed": 2}),
        ],
        Source.TAP,
    )
    assert coverage == {
        "m": Coverage(Source.TAP, 70, 100, {"derived": 2, "record": 4}, {"failed": 2, "several": 5})
    }
    assert coverage["m"].coverage == 0.7


@pytest.mark.parametrize("source", [Source.TAP, Source.PROXY])
def test_a_tap_that_saw_nothing_of_a_model_covers_none_of_it(source: Source) -> None:
    (coverage,) = coverages([window("all", 5000)], source).values()
    assert (coverage.source, coverage.drafts, coverage.coverage) == (source, 0, 0.0)
    trouble = trouble_of("m", coverage)
    assert trouble is not None
    assert trouble.kind == "low_coverage"
    assert "does all traffic pass through it?" in trouble.text


def test_without_a_tap_there_is_no_coverage() -> None:
    assert coverages([window("all", 5000)], None) == {}


def test_a_lost_tap_is_known_by_its_last_minutes() -> None:
    assert coverages([window("all", 10), window("0", 5)], None)["m"].source is Source.TAP


def test_a_model_whose_counts_are_doubted_has_no_coverage() -> None:
    windows = [window("all", 10), window("all", 10, model="n"), window("0", 5, model="n")]
    assert list(coverages(windows, Source.TAP, {"m"})) == ["n"]


def test_a_server_that_does_not_count_drafts_has_no_coverage_and_no_trouble() -> None:
    (coverage,) = coverages([window("all", None), window("0", 500)], Source.PROXY).values()
    assert coverage.coverage is None
    assert trouble_of("m", coverage) is None


def test_low_coverage_says_why_in_words() -> None:
    trouble = trouble_of("m", seen(150, 1000, several=3, refused=9, failed=1, aborted=2, x=4))
    assert trouble is not None
    assert trouble.model_name == "m"
    assert trouble.text.startswith("the tap covers 15.0% of the drafts")
    assert trouble.text.endswith(f"9 ({UNCOVERED['refused']}), 4 (x), 3 ({UNCOVERED['several']})")


@pytest.mark.parametrize("drafts", [10, 100_000])
def test_responses_without_any_record_name_the_flag(drafts: int) -> None:
    """However few there were: nothing will ever be seen."""
    coverage = Coverage(Source.TAP, 0, drafts, {}, {"no_record": 2, "refused": 1})
    trouble = trouble_of("m", coverage)
    assert trouble is not None
    assert trouble.kind == "no_record"
    assert "--per-request-spec-decode-metrics summary" in trouble.text
    assert trouble_of("m", replace(coverage, records={"record": 1}, drafts=drafts)) is None
    assert trouble_of("m", replace(coverage, server_drafts=0)) is None


def test_requests_of_apis_without_a_record_are_named_without_a_flag() -> None:
    """/v1/messages and /v1/responses: no flag gives them one."""
    trouble = trouble_of("m", Coverage(Source.TAP, 0, 5000, {}, {"endpoint": 7}))
    assert trouble is not None
    assert trouble.kind == "low_coverage"
    assert trouble.text.endswith(
        "7 (an API whose responses carry no record, such as /v1/messages and /v1/responses)"
    )


def test_the_acceptance_rates_of_tap_and_server() -> None:
    all_of_them = window("all", 100, draft_tokens=400, accepted_tokens=100)
    (coverage,) = coverages(
        [
            all_of_them,
            window("0", 40, draft_tokens=160, accepted_tokens=100),
            window(">1", 20, draft_tokens=80, accepted_tokens=20),
        ],
        Source.TAP,
    ).values()
    assert (coverage.acceptance_rate, coverage.server_acceptance_rate) == (0.5, 0.25)
    (coverage,) = coverages([all_of_them], Source.TAP).values()
    assert coverage.acceptance_rate is None
    (coverage,) = coverages([window("0", 5, draft_tokens=20, accepted_tokens=5)], None).values()
    assert coverage.server_acceptance_rate is None


OFF = Coverage(Source.TAP, 900, 1000, {"derived": 5}, {}, 0.46, 0.4)


@pytest.mark.parametrize(
    ("coverage", "kind"),
    [
        (seen(0, 999, several=3), None),
        (seen(0, 1000, several=3), "low_coverage"),
        (seen(499, 1000, several=3), "low_coverage"),
        (seen(500, 1000, several=3), None),
        (seen(1100, 1000, several=3), None),
        (seen(0, 0, several=3), None),
        (seen(0, None, several=3), None),
        (OFF, "derived_off"),
        (replace(OFF, acceptance_rate=0.34), "derived_off"),
        (replace(OFF, acceptance_rate=0.44), None),
        (replace(OFF, acceptance_rate=0.36), None),
        (replace(OFF, drafts=1100), "derived_off"),
        (replace(OFF, drafts=899), None),
        (replace(OFF, server_drafts=999, drafts=999), None),
        (replace(OFF, records={"record": 5}), None),
        (replace(OFF, records={"derived": 0}), None),
        (replace(OFF, acceptance_rate=None), None),
        (replace(OFF, server_acceptance_rate=None), None),
    ],
)
def test_coverage_is_judged_with_a_thousand_drafts(coverage: Coverage, kind: str | None) -> None:
    """Low below half; where nearly all was seen, a derived acceptance must be the server's."""
    trouble = trouble_of("m", coverage)
    assert (None if trouble is None else trouble.kind) == kind


def test_derived_acceptance_that_is_off_says_both_rates_and_the_remedy() -> None:
    trouble = trouble_of("m", OFF)
    assert trouble is not None
    assert trouble.model_name == "m"
    assert "is 46.0%, where the server counted 40.0%" in trouble.text
    assert trouble.text.endswith("--per-request-spec-decode-metrics summary")
    assert len(trouble.text) <= LONGEST_SENTENCE
    assert trouble.kind not in LEAVES_OUT


def test_reasons_that_did_not_occur_are_left_out() -> None:
    assert leading_reasons({"several": 0}) == []


@pytest.mark.parametrize(
    ("records", "share"), [({}, 0.0), ({"record": 3, "derived": 1}, 0.25), ({"derived": 0}, 0.0)]
)
def test_the_share_of_requests_whose_acceptance_is_derived(
    records: dict[str, int], share: float
) -> None:
    assert share_derived(records) == share
