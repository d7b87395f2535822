"""Rules, SLOs and baselines in a file: read whole, or refused with all that is wrong and where."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from specwatch.config.loading import Config, load, parse
from specwatch.config.rules import Condition, Rule, Scope, Slo
from specwatch.errors import ConfigError

DATA = Path(__file__).parents[1] / "data" / "ruling"

INVALID = {
    "rules": [
        '3: rules.without[1]: "net-negativ" is not a default rule; did you mean "net-negative"?',
        '5: rules.extra[0].metric: "acceptance_rate" is not a metric; did you mean'
        ' "acceptance_ratio"?',
        '6: rules.extra[1].above: 0.5 has no unit; write "0.5s" for seconds, or use ms, m,'
        ' h, d',
        '6: rules.extra[1].clear: "fast" is not a duration; write it like 500ms, 5s, 30m,'
        ' 1h30m or 14d',
        '7: rules.extra[2].above: "50%" is not a number; write it like 20',
        '8: rules.extra[3].below: "half" is not a number; write it like 0.5 or 50%',
        "9: rules.extra[4]: has above and below; keep one, or list two conditions under all",
        "10: rules.extra[5]: has neither above nor below; give one of them",
        "11: rules.extra[6]: has no condition; give metric and above or below, or a list"
        " under all",
        "12: rules.extra[7]: has any and metric; keep one of them, or make it two rules",
        "13: rules.extra[8].all: is empty; list at least one condition",
        "14: rules.extra[9].any: expected a list, found a mapping",
        "15: rules.extra[10].conditions: unknown key; list conditions under all or any",
        '20: rules.extra[11].all[1].abov: unknown key; did you mean "above"?',
        '21: rules.extra[12].name: is missing; add it, like "name: slow-start"',
        "21: rules.extra[12].window: 1m30s is not 1m to 24h in whole minutes",
        "21: rules.extra[12].for: 8d is too long; make it at most 7d",
        '21: rules.extra[12].clear_for: 5 has no unit; write "5s" for seconds, or use ms, m,'
        ' h, d',
        "21: rules.extra[12].min_drafts: -1 is not a whole number of at least 0",
        "22: rules.extra[13].summary: expected text, found a number; put it in quotes",
        "22: rules.extra[13].severity: \"bad\" is none of 'critical', 'warning' or 'info'",
        "22: rules.extra[13].action: \"restart\" is none of 'alert' or 'disable'",
        '23: rules.extra[14].name: is missing; add it, like "name: slow-start"',
        '23: rules.extra[14].metric: is missing; add it, like "metric: acceptance_ratio"',
        "23: rules.extra[14].window: 1d1h is not 1m to 24h in whole minutes",
        '23: rules.extra[14].min_requests: "many" is not a whole number of at least 0',
        "24: rules.extra[15]: expected a mapping of keys to values, found text",
    ],
    "rules-never": [
        "4: rules.extra[0].above: can never fire: acceptance_ratio is at most 1; give less"
        " than 1",
        "5: rules.extra[1].below: can never fire: acceptance_ratio is at least 0; give more"
        " than 0",
        "6: rules.extra[2].below: can never fire: acceptance_change is at least -1; give"
        " more than -1",
        "7: rules.extra[3].below: can never fire: acceptance_length is at least 1; give more"
        " than 1",
        "8: rules.extra[4].below: can never clear: acceptance_ratio is at most 1, so it"
        " always holds; give 1 or less",
        "9: rules.extra[5].above: can never clear: preemptions is at least 0, so it always"
        " holds; give 0 or more",
        "10: rules.extra[6].clear: lies on the wrong side of below: 0.5; give 0.5 or more",
        "11: rules.extra[7].clear: can never be reached: acceptance_ratio is at most 1; give"
        " 1 or less",
        "12: rules.extra[8].clear: lies on the wrong side of above: 80ms; give 80ms or less",
        "16: rules.extra[9].all[1]: can never fire: acceptance_ratio is not above the one"
        " and below the other; use any",
        "20: rules.extra[10].any[1]: can never clear: acceptance_ratio is always above the"
        " one or below the other; leave room between them",
        "24: rules.extra[11].all[1]: can never fire beside the others:"
        " acceptance_ratio_unmeasured is there only without a baseline; use acceptance_ratio",
        "25: rules.extra[12].scope.temperature: kv_cache_usage is not known by temperature;"
        " use all, or another metric",
        "27: rules.extra[13].all[1]: can never fire beside the others:"
        " acceptance_ratio_unmeasured is there only without a baseline; use acceptance_ratio",
    ],
    "rules-names": [
        '5: rules.extra[1].name: "slow" is the name of rules.extra[0] too; give another',
    ],
    "rules-unused": [
        "2: rules.without: has no effect beside use_defaults: false; remove one of them",
    ],
    "scopes": [
        '5: rules.extra[0].scope.target: "chta" fits no target; did you mean "chat"?',
        '6: rules.extra[1].scope.target: "x*" fits no target; known here: chat, code',
        '6: rules.extra[1].scope.temperature: "0.3" is not a temperature bucket; use one of 0,'
        ' (0,1], >1, all, each, positive, unknown',
        '11: rules.extra[2].scope.temperature: "(0,0.3]" is not a temperature bucket; use one'
        ' of 0, (0,1], >1, all, each, positive, unknown',
    ],
    "slos": [
        "3: targets[0].draft_cost_ratio: 0 is not above 0 and at most 1; give what a token"
        " of the draft model costs over one of the target model, like 0.1",
        "4: targets[1].draft_cost_ratio: 1.5 is not above 0 and at most 1; give what a token"
        " of the draft model costs over one of the target model, like 0.1",
        '5: targets[2].draft_cost_ratio: "low" is not a number; write it like 0.5 or 50%',
        "6: baseline.max_age: 30m is too short; make it at least 1h",
        '8: slos[0].metric: is missing; add it, like "metric: ttft"',
        '8: slos[0].threshold: is missing; add it, like "threshold: 500ms"',
        '8: slos[0].objective: is missing; add it, like "objective: 99%"',
        "9: slos[1].metric: \"inter_token\" is none of 'ttft', 'tpot' or 'e2e'",
        "9: slos[1].threshold: nothing takes no time; make it more than 0s",
        "9: slos[1].objective: 1 is not between 0 and 1; write it like 99% or 0.99",
        "9: slos[1].window: 1h30m is not 1h to 30d in whole hours",
        '10: slos[2].threshold: 500 has no unit; write "500ms" for milliseconds, or use s, m, h, d',
        "10: slos[2].objective: 99 is not between 0 and 1; write it like 99% or 0.99",
        "10: slos[2].window: 31d is not 1h to 30d in whole hours",
    ],
    "slo-names": [
        '4: slos[1].name: "a" is the name of slos[0] too; give another',
    ],
}  # fmt: skip


def valid() -> Config:
    return load(DATA / "valid.yml", environ={}, hostname="gpu-7")


def one(rule: str) -> Rule:
    text = f"targets: [{{url: 'http://h', name: chat}}]\nrules: {{extra: [{rule}]}}\n"
    return parse(text, "specwatch.yml", environ={}, hostname="gpu-7").rules.extra[0]


def test_every_invalid_file_is_in_the_table() -> None:
    assert {path.stem for path in DATA.glob("invalid-*.yml")} == {f"invalid-{n}" for n in INVALID}


@pytest.mark.parametrize("name", sorted(INVALID))
def test_an_invalid_file_is_refused_with_each_problem_on_its_line(name: str) -> None:
    path = DATA / f"invalid-{name}.yml"
    with pytest.raises(ConfigError) as caught:
        load(path, environ={}, hostname="gpu-7")
    assert str(caught.value).splitlines() == [f"{path}:{line}" for line in INVALID[name]]


def test_without_a_word_the_defaults_apply() -> None:
    config = parse("targets: [{url: 'http://h'}]", "f", environ={}, hostname="gpu-7")
    assert len(config.rules.effective()) == 12
    assert (config.slos, config.baseline.max_age) == ((), 30 * 86400)
    assert config.targets[0].draft_cost_ratio == 0.1


def test_every_key_reaches_its_place() -> None:
    config = valid()
    slow, low, squeezed, shift = config.rules.extra
    assert slow.conditions == (Condition(metric="ttft_p99", above="800ms", clear="500ms"),)
    assert (slow.conditions[0].above, slow.conditions[0].clear) == (0.8, 0.5)
    assert (slow.combine, slow.window, slow.for_, slow.clear_for) == ("all", 600, 0, 300)
    assert low == Rule(
        name="low-acceptance",
        summary="ours",
        conditions=(Condition(metric="acceptance_ratio", below=0.4),),
        window="1h",
        for_="1d",
        clear_for="90s",
        min_drafts=100,
        min_requests=5,
        scope=Scope(target="[2001:*", model_name="tiny-?", temperature="0"),
        severity="critical",
        action="disable",
    )
    assert (squeezed.combine, shift.combine) == ("all", "any")
    assert [c.threshold for c in (*squeezed.conditions, *shift.conditions)] == pytest.approx(
        [0.9, 20, -0.05, 0.0005]
    )
    assert [c.clearing for c in squeezed.conditions] == [0.9, 15]
    assert [squeezed.window_of(c) for c in squeezed.conditions] == [600, 300]
    assert config.slos == (
        Slo(name="ttft", metric="ttft", threshold="500ms", objective="99%", window="7d"),
        Slo(name="tpot", metric="tpot", threshold="1.25ms", objective=0.5, window="30d"),
    )
    assert (config.slos[0].threshold, config.slos[0].objective) == (0.5, 0.99)
    assert config.baseline.max_age == 7 * 86400
    assert config.targets[0].draft_cost_ratio == 0.05


@pytest.mark.parametrize(("said", "action"), [("", "alert"), ("true", "disable")])
def test_acting_on_assumptions_is_asked_for(said: str, action: str) -> None:
    guard = f"guard: {{act_on_assumptions: {said}}}" if said else ""
    text = f"targets: [{{url: 'http://h'}}]\n{guard}"
    config = parse(text, "f", environ={}, hostname="gpu-7")
    actions = {rule.name: rule.action for rule in config.effective_rules()}
    assert actions["low-acceptance"] == action
    assert (actions["losing-bucket"], actions["net-negative"]) == ("alert", "disable")
    left_out = parse(
        f"{text}\nrules: {{without: [low-acceptance]}}", "f", environ={}, hostname="gpu-7"
    )
    assert "low-acceptance" not in {rule.name for rule in left_out.effective_rules()}


def test_a_rule_of_an_older_configuration_keeps_its_metric_and_its_action() -> None:
    written = "{name: low-acceptance, metric: acceptance_ratio_unmeasured, below: 0.4}"
    config = parse(
        f"targets: [{{url: 'http://h'}}]\nguard: {{act_on_assumptions: true}}\n"
        f"rules: {{extra: [{written}]}}",
        "f", environ={}, hostname="gpu-7",
    )  # fmt: skip
    (low,) = [rule for rule in config.effective_rules() if rule.name == "low-acceptance"]
    assert (low.conditions[0].metric, low.action) == ("acceptance_ratio_unmeasured", "alert")


def test_a_rule_of_the_user_takes_the_place_of_its_namesake() -> None:
    rules = {rule.name: rule for rule in valid().rules.effective()}
    assert len(rules) == 12 - 1 + 3
    assert rules["low-acceptance"].summary == "ours"
    assert "short-outputs" not in rules


def test_the_public_face_reads_back_as_the_same() -> None:
    """In the syntax of the file: no fields that a file does not have, units where it has them."""
    config = valid()
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
        ("acceptance_ratio", "50%", 0.5), ("acceptance_ratio", "0.5", 0.5),
        ("acceptance_ratio", "'0.5'", 0.5), ("acceptance_ratio", "12.5%", 0.125),
        ("tpot_p99_ratio", "110%", 1.1), ("ttft_p99", "1m30s", 90.0), ("tpot_p50", "80ms", 0.08),
        ("running", "20", 20.0), ("acceptance_length", "2.5", 2.5),
    ],
)  # fmt: skip
def test_thresholds_have_the_unit_of_their_metric(metric: str, written: str, read: float) -> None:
    (found,) = one(f"{{name: a, metric: {metric}, above: {written}}}").conditions
    assert found.above == read


@pytest.mark.parametrize(
    ("metric", "written"),
    [
        ("acceptance_ratio", "80ms"), ("running", "50%"), ("ttft_p99", "50%"), ("ttft_p99", "0.5"),
        ("speedup_ratio", "1e999"), ("speedup_ratio", "true"), ("speedup_ratio", "[1]"),
        ("speedup_ratio", ".inf"), ("speedup_ratio", "nan"), ("speedup_ratio", "'%'"),
    ],
)  # fmt: skip
def test_no_metric_is_compared_with_what_it_is_not(metric: str, written: str) -> None:
    with pytest.raises(ConfigError, match=r"rules\.extra\[0\]\.above: "):
        one(f"{{name: a, metric: {metric}, above: {written}}}")


@pytest.mark.parametrize(
    "temperature", ["all", "each", "positive", "unknown", "0", '"0"', '"(0,0.3]"', '">1"']
)
def test_a_scope_may_name_any_bucket_that_there_is(temperature: str) -> None:
    scope = f"{{temperature: {temperature}}}"
    rule = one(f"{{name: a, metric: acceptance_ratio, below: 0.5, scope: {scope}}}")
    assert rule.scope.temperature == temperature.strip('"')


def test_unlike_windows_do_not_exclude_one_another() -> None:
    """Above in the hour and below in these minutes is a fall, which may well be."""
    below = "{metric: acceptance_ratio, below: 0.5, window: 5m}"
    above = "{metric: acceptance_ratio, above: 0.5, window: 1h}"
    assert len(one(f"{{name: a, all: [{below}, {above}]}}").conditions) == 2


def test_an_interval_may_lie_across_both_lines() -> None:
    below, above = ("{metric: speedup_ratio, " + each + "}" for each in ("below: 1.2", "above: 1"))
    assert len(one(f"{{name: a, any: [{below}, {above}]}}").conditions) == 2
