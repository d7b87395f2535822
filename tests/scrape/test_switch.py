"""The switch on a page, and whether counters follow it."""

from __future__ import annotations

import math

import pytest

from specwatch.domain.model import Mode, Series
from specwatch.scrape import switch, tally
from specwatch.scrape.switch import DraftCounts, FollowedSwitch, SwitchSetting
from tests.pages import counter, gauge, page, read


def page_of(draft_tokens: float, ordered: float, *more: str) -> str:
    return page(
        *more,
        gauge("specwatch_switch_draft_tokens", draft_tokens),
        gauge("specwatch_switch_ordered", ordered),
    )


def test_the_setting_of_a_switch():
    assert switch.setting_of(read(page_of(2, 1))) == SwitchSetting(2, ordered=True)
    assert switch.setting_of(read(page_of(4, 0))) == SwitchSetting(4, ordered=False)
    for unknown in (page(), page_of(math.nan, math.nan), page_of(-1, 1), page_of(1e9, 1)):
        assert switch.setting_of(read(unknown)) is None
    assert tally.parts_of(read(page_of(0, 1))) == tally.Parts({}, {})


def test_minutes_under_a_schedule_are_neither_the_launchs_nor_of_another_one():
    drafts = [
        counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            7,
            model_name="m",
            engine="0",
            position=str(position),
        )
        for position in range(4)
    ]

    def shown(ordered: int, schedule: float) -> dict[Series, float]:
        return read(page_of(4, ordered, *drafts, gauge("specwatch_switch_schedule", schedule)))

    first = switch.setting_of(shown(1, 47))
    assert first == SwitchSetting(4, ordered=True, schedule=47)
    assert switch.changed(first, switch.setting_of(shown(1, 48)))
    assert switch.setting_of(shown(0, math.nan)) == SwitchSetting(4, ordered=False)
    prints = [tally.fingerprint_of(shown(*one)) for one in ((0, 0), (1, 0), (1, 47), (1, 48))]
    assert [one.partition("-")[2] for one in prints] == ["4", "4", "schedule 2f", "schedule 30"]


@pytest.mark.parametrize(
    ("shown", "mode"), [((0, 1), Mode.STANDBY), ((0, 0), Mode.ON), ((2, 1), Mode.ON)]
)
def test_the_mode_that_a_setting_makes(shown: tuple[float, float], mode: Mode) -> None:
    setting = switch.setting_of(read(page_of(*shown)))
    assert setting is not None
    assert setting.mode is mode


@pytest.mark.parametrize(
    ("draft_tokens", "now", "followed"),
    [
        (0, (0, 0, 100), True),
        (0, (1, 4, 100), False),
        (0, (0, 0, 19), None),
        (2, (40, 80, 100), True),
        (2, (40, 79, 100), True),
        (2, (40, 81, 100), False),
        (2, (0, 0, 100), None),
        (2, (40, 80, 10), None),
    ],
)
def test_counters_show_whether_an_order_is_followed(
    draft_tokens: int, now: tuple[int, int, int], followed: bool | None
) -> None:
    before = DraftCounts(7.0, 28.0, 500.0)
    after = DraftCounts(*(then + more for then, more in zip(before, now, strict=True)))
    assert after.follow(draft_tokens, before) is followed


def counts(drafts: int, drafted: int, tokens: int) -> dict[Series, float]:
    return read(
        page(
            counter("vllm:spec_decode_num_drafts", drafts, model_name="m", engine="0"),
            counter("vllm:spec_decode_num_draft_tokens", drafted, model_name="m", engine="0"),
            counter("vllm:generation_tokens", tokens, model_name="m", engine="0"),
        )
    )


def test_an_order_is_followed_from_the_second_page_on():
    watch, standby = FollowedSwitch(), SwitchSetting(0, ordered=True)
    watch.see(counts(10, 40, 100), SwitchSetting(4, ordered=False))
    watch.see(counts(20, 80, 200), standby)  # some of it before the order
    watch.see(counts(25, 100, 300), standby)  # steps that were under way
    assert watch.followed is None
    watch.see(counts(25, 100, 310), standby)
    assert watch.followed is None  # too few tokens
    watch.see(counts(25, 100, 330), standby)
    assert watch.followed is True
    watch.see(counts(35, 140, 430), standby)
    assert watch.followed is False
    watch.see(counts(35, 140, 430), SwitchSetting(4, ordered=False))
    assert watch.followed is None


def test_a_restart_is_no_answer():
    watch, two = FollowedSwitch(), SwitchSetting(2, ordered=True)
    for seen in (counts(100, 400, 1000), counts(100, 400, 1000), counts(5, 10, 30)):
        watch.see(seen, two)
    assert watch.followed is None
    watch.see(counts(25, 50, 90), two)
    assert watch.followed is True
