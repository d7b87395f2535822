"""Rules, SLOs and baselines in a file: read whole, or refused with all that is wrong and where."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from specwatch.config.loading import parse
from specwatch.config.rules import Rule
from specwatch.errors import ConfigError
from tests.config.files import one_target, valid


def one(rule: str) -> Rule:
    return one_target(f"rules: {{extra: [{rule}]}}\n").rules.extra[0]


def test_without_a_rules_section_the_defaults_apply() -> None:
    config = one_target()
    assert len(config.rules.effective()) == 15
    assert (config.slos, config.baseline.max_age) == ((), 30 * 86400)
    assert config.targets[0].draft_cost_ratio == 0.1


def test_amounts_and_times_are_numbers(tmp_path: Path) -> None:
    config = valid("ruling/valid.yml", tmp_path)
    slow, low, squeezed, shift = config.rules.extra
    assert (slow.conditions[0].above, slow.conditions[0].clear) == (0.8, 0.5)
    assert (low.window, low.for_, low.clear_for) == (3600, 86400, 90)
    assert [c.threshold for c in (*squeezed.conditions, *shift.conditions)] == pytest.approx(
        [0.9, 20, -0.05, 0.0005]
    )
    assert [c.clearing for c in squeezed.conditions] == [0.9, 15]
    assert [squeezed.window_of(c) for c in squeezed.conditions] == [600, 300]
    assert [(slo.threshold, slo.objective) for slo in config.slos] == [(0.5, 0.99), (0.00125, 0.5)]
    assert config.baseline.max_age == 7 * 86400


@pytest.mark.parametrize(("value", "action"), [("", "alert"), ("true", "disable")])
def test_low_acceptance_disables_only_with_act_on_assumptions(value: str, action: str) -> None:
    guard = f"guard: {{act_on_assumptions: {value}}}\n" if value else ""
    config = one_target(guard)
    actions = {rule.name: rule.action for rule in config.effective_rules()}
    assert actions["low-acceptance"] == action
    assert (actions["losing-bucket"], actions["net-negative"]) == ("alert", "disable")
    left_out = one_target(f"{guard}rules: {{without: [low-acceptance]}}")
    assert "low-acceptance" not in {rule.name for rule in left_out.effective_rules()}


def test_a_rule_of_an_older_configuration_keeps_its_metric_and_its_action() -> None:
    written = "{name: low-acceptance, metric: acceptance_ratio_unmeasured, below: 0.4}"
    config = one_target(f"guard: {{act_on_assumptions: true}}\nrules: {{extra: [{written}]}}")
    (low,) = [rule for rule in config.effective_rules() if rule.name == "low-acceptance"]
    assert (low.conditions[0].metric, low.action) == ("acceptance_ratio_unmeasured", "alert")


def test_a_rule_of_the_user_takes_the_place_of_its_namesake(tmp_path: Path) -> None:
    rules = {rule.name: rule for rule in valid("ruling/valid.yml", tmp_path).rules.effective()}
    assert len(rules) == 15 - 1 + 3
    assert rules["low-acceptance"].summary == "ours"
    assert "short-outputs" not in rules


def test_the_public_configuration_reads_back_equal(tmp_path: Path) -> None:
    """In the syntax of the file: no fields that a file does not have, units where it has them."""
    config = valid("ruling/valid.yml", tmp_path)
    public = config.public()
    keys = ("temperature_buckets", "rules", "slos", "baseline")
    servers = [{"name": target.name, "url": target.url} for target in config.targets]
    text = yaml.safe_dump({"targets": servers, **{key: public[key] for key in keys}})
    again = parse(text, "public", environ={}, hostname="gpu-7")
    assert (again.rules, again.slos) == (config.rules, config.slos)
    assert again.baseline == config.baseline
    slow = public["rules"]["extra"][0]
    assert slow["all"] == [{"metric": "ttft_p99", "above": "800ms", "clear": "500ms"}]
    assert (slow["for"], slow["window"]) == ("0s", "10m")
    assert public["rules"]["extra"][3]["any"][1]["above"] == "0.5ms"
    assert public["slos"][1]["threshold"] == "1.25ms"


@pytest.mark.parametrize(
    ("metric", "written", "read"),
    [
        ("acceptance_ratio", "50%", 0.5),
        ("acceptance_ratio", "0.5", 0.5),
        ("acceptance_ratio", "'0.5'", 0.5),
        ("acceptance_ratio", "12.5%", 0.125),
        ("tpot_p99_ratio", "110%", 1.1),
        ("ttft_p99", "1m30s", 90.0),
        ("tpot_p50", "80ms", 0.08),
        ("running", "20", 20.0),
        ("acceptance_length", "2.5", 2.5),
    ],
)
def test_thresholds_have_the_unit_of_their_metric(metric: str, written: str, read: float) -> None:
    (condition,) = one(f"{{name: a, metric: {metric}, above: {written}}}").conditions
    assert condition.above == read


@pytest.mark.parametrize(
    ("metric", "written"),
    [
        ("acceptance_ratio", "80ms"),
        ("running", "50%"),
        ("ttft_p99", "50%"),
        ("ttft_p99", "0.5"),
        ("speedup_ratio", "1e999"),
        ("speedup_ratio", "true"),
        ("speedup_ratio", "[1]"),
        ("speedup_ratio", ".inf"),
        ("speedup_ratio", "nan"),
        ("speedup_ratio", "'%'"),
    ],
)
def test_a_threshold_in_another_unit_is_refused(metric: str, written: str) -> None:
    with pytest.raises(ConfigError, match=r"rules\.extra\[0\]\.above: "):
        one(f"{{name: a, metric: {metric}, above: {written}}}")


@pytest.mark.parametrize("value", ["'*'", "positive", "unknown", "0", '"0"', '"(0,0.3]"', '">1"'])
def test_a_scope_may_name_any_bucket_that_there_is(value: str) -> None:
    scope = f"{{dimension: temperature, value: {value}}}"
    rule = one(f"{{name: a, metric: acceptance_ratio, below: 0.5, scope: {scope}}}")
    assert rule.scope.value == value.strip("'\"")


def test_unlike_windows_do_not_exclude_one_another() -> None:
    """Above in the hour and below in these minutes is a fall, which may well be."""
    below = "{metric: acceptance_ratio, below: 0.5, window: 5m}"
    above = "{metric: acceptance_ratio, above: 0.5, window: 1h}"
    assert len(one(f"{{name: a, all: [{below}, {above}]}}").conditions) == 2


def test_an_interval_may_lie_across_both_lines() -> None:
    below, above = ("{metric: speedup_ratio, " + side + "}" for side in ("below: 1.2", "above: 1"))
    assert len(one(f"{{name: a, any: [{below}, {above}]}}").conditions) == 2
