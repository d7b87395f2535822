"""What was served over the last minutes, as figures of the metrics page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specwatch.domain.model import Gauges, Window
from specwatch.status import DaemonStatus
from tests.web.exported import samples
from tests.web.statuses import daemon, of_tap, target, whole

START = 1_699_999_980
LOADS = {
    "prompt_tokens_per_second": 20.0, "preemptions_per_second": 0.05, "running_requests": 2.5,
    "running_requests_max": 7.0, "waiting_requests": 0.5, "kv_cache_usage_ratio": 0.25,
    "prefix_cache_hit_ratio": 0.25,
}  # fmt: skip
RATES = ("drafts_per_second", "requests_per_second", "generation_tokens_per_second")


def shown(*windows: Window) -> DaemonStatus:
    return daemon(target(recent=windows))


@pytest.mark.parametrize(("name", "value"), list(LOADS.items()))
def test_the_load_is_that_of_the_engine_once_for_each_model(name: str, value: float) -> None:
    """A temperature has none of it, whatever its window says."""
    bucket = replace(whole(), series=of_tap(START, "0", drafts=1, of=1, server=1).series)
    found = samples(shown(whole(), bucket), f"specwatch_{name}")
    assert found == {("llama", "chat"): pytest.approx(value)}


def test_rates_are_over_down_time_too() -> None:
    """A process that was out of reach counted on meanwhile."""
    status = shown(replace(whole(), observed_seconds=40.0, down_seconds=60.0))
    assert samples(status, "specwatch_drafts_per_second") == {("llama", "chat", "all"): 1.0}


def test_rates_of_temperatures_are_over_the_time_of_all() -> None:
    """A temperature of which only the last minute had requests had them in two minutes."""
    bucket = of_tap(START, "0", drafts=60, of=60, server=100)
    status = shown(whole(), replace(bucket, observed_seconds=60.0))
    assert samples(status, "specwatch_drafts_per_second") == {
        ("llama", "chat", "all"): pytest.approx(100 / 120),
        ("llama", "chat", "0"): pytest.approx(0.5),
    }
    assert samples(status, "specwatch_requests_per_second") == {
        ("llama", "chat", "all"): pytest.approx(9 / 120),
        ("llama", "chat", "0"): pytest.approx(9 / 120),
    }
    assert samples(status, "specwatch_generation_tokens_per_second") == {
        ("llama", "chat", "all"): 3.0
    }


def test_each_position_has_its_share_of_the_drafts() -> None:
    one = whole(accepted_per_position=(100, 75, 25, 0))
    found = samples(shown(one), "specwatch_position_acceptance_ratio")
    assert found == {
        ("llama", str(position), "chat", "all"): ratio
        for position, ratio in enumerate((1.0, 0.75, 0.25, 0.0))
    }


def test_positions_that_contradict_the_count_of_tokens_are_not_shown() -> None:
    """As for the accepted lengths: 225 tokens are not 200."""
    torn = whole(accepted_per_position=(100, 75, 50, 0))
    for name in ("position_acceptance_ratio", "accepted_length_drafts"):
        assert samples(shown(torn), f"specwatch_{name}") == {}


def test_positions_that_a_page_makes_up_do_not_fill_ours() -> None:
    one = whole(accepted_per_position=(100, 100, *([0] * 900)))
    assert samples(shown(one), "specwatch_position_acceptance_ratio") == {}


def test_what_a_server_does_not_say_is_absent_and_not_zero() -> None:
    silent = whole(drafts=None, requests={}, accepted_per_position=None)
    unknown = replace(
        silent,
        tally=replace(
            silent.tally, generation_tokens=None, prompt_tokens=None, preemptions=None,
            prefix_cache_queries=0,
        ),
        gauges=Gauges(),
    )  # fmt: skip
    for name in (*LOADS, *RATES, "position_acceptance_ratio"):
        assert samples(shown(unknown), f"specwatch_{name}") == {}


def test_nothing_is_a_rate_of_no_time() -> None:
    never = replace(whole(), observed_seconds=0.0)
    for name in (*RATES, "prompt_tokens_per_second", "preemptions_per_second"):
        assert samples(shown(never), f"specwatch_{name}") == {}


def test_a_server_that_did_nothing_has_rates_of_zero() -> None:
    """Idle is known, and no gap in a graph; a share of nothing is not."""
    idle = whole(drafts=0, requests={"stop": 0}, accepted_per_position=(0, 0, 0, 0))
    assert samples(shown(idle), "specwatch_drafts_per_second") == {("llama", "chat", "all"): 0}
    assert samples(shown(idle), "specwatch_requests_per_second") == {("llama", "chat", "all"): 0}
    assert samples(shown(idle), "specwatch_position_acceptance_ratio") == {}
