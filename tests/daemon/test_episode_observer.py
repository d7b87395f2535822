"""What is observed of the arms of an episode, page by page."""

from __future__ import annotations

import pytest

from specwatch.daemon.episode_observer import (
    RESTARTED,
    SET_BY_OTHERS,
    EpisodeObserver,
    group_totals,
)
from specwatch.domain.model import Series
from specwatch.domain.switchback import MOST_GROUPS, Episode
from specwatch.scrape.switch import SwitchSetting
from tests import pages
from tests.segments import segment

LAUNCHED = SwitchSetting(4, ordered=False)
TWO = SwitchSetting(2, ordered=True)
CELLS = {("0", "1-256"): (10.0, 1000), ("0", "16385+"): (4.0, 100), (">1", "1-256"): (5.0, 250)}
"""Seconds and tokens by temperature and prompt length."""


def page(share: float = 1.0, cells: dict[tuple[str, str], tuple[float, int]] = CELLS):
    """A page of a server that has done this share of the work."""
    tapped = [
        pages.counter(
            f"specwatch_decode_{quantity}",
            value * share,
            model_name="m",
            temperature=temperature,
            prompt_length=length,
        )
        for (temperature, length), values in cells.items()
        for quantity, value in zip(("seconds", "tokens"), values, strict=True)
    ]
    engine = [
        pages.counter("vllm:generation_tokens", 1500 * share, model_name="m"),
        *(
            pages.histogram(f"vllm:{name}_seconds", (1.0,), (count, 0), seconds, model_name="m")
            for name, count, seconds in (
                ("time_to_first_token", int(50 * share), 9.0),
                ("inter_token_latency", 9, 20 * share),
            )
        ),
    ]
    return pages.read(pages.page(*engine, *tapped))


def episode(observer: EpisodeObserver) -> Episode:
    observed = observer.episode("launch")
    assert observed is not None
    return observed


def test_the_groups_of_one_kind_add_up_to_all_requests_of_the_tap() -> None:
    totals = group_totals(page())
    assert totals == {
        "all": (20.0, 1450.0),
        "temperature 0": (14.0, 1100.0),
        "temperature >1": (5.0, 250.0),
        "prompt length 1-256": (15.0, 1250.0),
        "prompt length 16385+": (4.0, 100.0),
    }
    for kind in ("temperature", "prompt length"):
        sums = [
            sum(part)
            for part in zip(
                *(total for group, total in totals.items() if group.startswith(kind)), strict=True
            )
        ]
        assert sums == [19.0, 1350.0]


def test_a_page_without_a_tap_has_the_group_of_all() -> None:
    assert set(group_totals(page(cells={}))) == {"all"}


def test_segments_are_not_counted_again() -> None:
    counted = {
        Series(quantity, "", "m", "", "", segment("output=text")): 9.0
        for quantity in ("decode_seconds", "decode_tokens")
    }
    assert group_totals({**page(), **counted}) == group_totals(page())


def test_invented_labels_do_not_fill_the_memory() -> None:
    totals = group_totals(page(cells={(str(n), str(n)): (1.0, 1) for n in range(500)}))
    assert len(totals) == MOST_GROUPS
    assert "all" in totals


def test_a_part_has_what_was_counted_between_two_pages() -> None:
    observer = EpisodeObserver()
    observer.see(page(1.0), LAUNCHED, 3.0, 0.0)
    assert not observer.observes
    observer.begin("launch", None, 0.5)
    observer.see(page(1.5), LAUNCHED, 3.0, 5.0)
    observer.begin("2", 2, 6.0)
    observer.see(page(2.0), TWO, 4.0, 10.0)
    observer.see(page(2.0), TWO, 8.0, 15.0)
    first, second = episode(observer).blocks
    assert (first.arm, second.arm, second.running) == ("launch", "2", 6.0)
    (part,) = first.parts
    assert part.end == 4.5
    assert part.groups == {g: (s / 2, t / 2) for g, (s, t) in group_totals(page()).items()}
    assert [part.end for part in second.parts] == [4.0, 9.0]
    assert set(second.parts[1].groups.values()) == {(0.0, 0.0)}
    assert not episode(observer).incident


def test_a_group_that_comes_within_a_block_began_at_0() -> None:
    observer = EpisodeObserver()
    observer.see(page(cells={}), LAUNCHED, 1.0, 0.0)
    observer.begin("launch", None, 0.0)
    observer.see(page(), LAUNCHED, 1.0, 5.0)
    observer.begin("2", 2, 5.0)
    assert episode(observer).blocks[0].parts[0].groups["temperature >1"] == (5.0, 250.0)


def test_counters_that_fell_are_an_incident() -> None:
    for later in (page(0.5), page(cells={("0", "1-256"): (10.0, 999)})):
        observer = EpisodeObserver()
        observer.see(page(), LAUNCHED, 1.0, 0.0)
        observer.begin("launch", None, 0.0)
        observer.see(later, LAUNCHED, 1.0, 5.0)
        observer.begin("2", 2, 5.0)
        assert observer.incident == RESTARTED
        assert episode(observer).incident


def test_a_sum_of_processes_may_be_a_last_digit_smaller() -> None:
    observer = EpisodeObserver()
    observer.see(page(cells={("0", "1-256"): (0.3, 1)}), LAUNCHED, 1.0, 0.0)
    observer.begin("launch", None, 0.0)
    observer.see(page(cells={("0", "1-256"): (0.3 - 1e-15, 1)}), LAUNCHED, 1.0, 5.0)
    observer.begin("2", 2, 5.0)
    assert observer.incident == ""
    assert episode(observer).blocks[0].parts[0].groups["temperature 0"] == (0.0, 0.0)


@pytest.mark.parametrize("setting", [None, LAUNCHED, SwitchSetting(1, ordered=True)])
def test_another_setting_than_ordered_is_an_incident_after_3_seconds(
    setting: SwitchSetting | None,
) -> None:
    observer = EpisodeObserver()
    observer.see(page(), LAUNCHED, 1.0, 0.0)
    observer.begin("2", 2, 0.0)
    observer.see(page(), setting, 1.0, 3.0)
    assert observer.incident == ""
    observer.see(page(), setting, 1.0, 3.1)
    assert observer.incident == SET_BY_OTHERS


def test_the_first_incident_is_kept_until_the_next_episode() -> None:
    observer = EpisodeObserver()
    observer.begin("2", 2, 0.0)
    observer.abandon("the guard is busy with it")
    observer.note("another one")
    assert (observer.observes, observer.incident) == (False, "the guard is busy with it")
    assert observer.episode("launch") is None
    observer.clear()
    assert observer.incident == ""


def test_running_requests_are_those_of_pages_that_have_them() -> None:
    observer = EpisodeObserver()
    samples: dict[Series, float] = page()
    observer.see(samples, LAUNCHED, 1.0, 0.0)
    for arm, running in (("launch", None), ("2", 5.0)):
        observer.begin(arm, None, 0.0)
        observer.see(samples, LAUNCHED, running, 1.0)
    assert [block.running for block in episode(observer).blocks] == [0.0, 5.0]
