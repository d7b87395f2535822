"""Models of reports, made by hand: one that pays, one that loses, one that nobody knows of."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from specwatch.report.estimates import Amount, Bounds, Ratio, ReportLatency
from specwatch.report.model import (
    Crossing,
    Experiment,
    Gap,
    Health,
    MeasuredLoad,
    ModelReport,
    ProbedTemperature,
    ReportAnswer,
    ReportBestK,
    ReportBreach,
    ReportChange,
    ReportGoodput,
    ReportObjective,
    ReportSeries,
    ReportSide,
    ReportTraffic,
    Temperature,
    WhatIf,
    WorstHour,
)
from specwatch.report.sentences import recommendation, sentence
from tests.report.pieces import (
    BUCKETS,
    HOUR,
    PAYS,
    SINCE,
    UNTIL,
    Recipe,
    acceptance,
    incident,
    loads,
    measured,
    series,
    temperature,
    temperatures,
)


def traffic(
    requests: int = 0, prompt: int = 0, generated: int = 0, on: float = 0.0, busy: float = 0.0,
    **others: Any,
) -> ReportTraffic:  # fmt: skip
    """``on`` and ``busy`` are seconds with speculation."""
    without = {"seconds_off": 0.0, "seconds_mixed": 0.0, "busy_off": 0.0}
    return ReportTraffic(
        requests=requests, prompt_tokens=prompt, generation_tokens=generated, seconds_on=on,
        busy_on=busy, **(without | others),
    )  # fmt: skip


def health(observed: float, ok: int, failed: int = 0, **others: Any) -> Health:
    """``ok`` and ``failed`` are scrapes."""
    known = {"expected": 604_800.0, "restarts": 0, "coverage": None, "source": None, **others}
    return Health(observed=observed, scrapes_ok=ok, scrapes_failed=failed, **known)


def finished(model: ModelReport) -> ModelReport:
    """With the sentences of the answer."""
    answer = replace(
        model.answer, sentence=sentence(model), recommendation=recommendation(model)
    )  # fmt: skip
    return replace(model, answer=answer)


def pays() -> ModelReport:
    wins = ("1", "2", "3-4", "5-8", "9-16", "17-32")
    near = {"tpot_p50": Bounds(lower=0.01, upper=0.025)}
    return finished(
        ModelReport(
            target="chat-70b",
            model_name="meta-llama/Llama-3.3-70B-Instruct",
            answer=ReportAnswer(
                outcome="pays",
                sentence="",
                recommendation="",
                speedup=Ratio(value=1.62, lower=1.55, upper=1.69),
                objective="e2e",
                hours_saved=Amount(value=41.2, lower=37.6, upper=44.9),
                gpu_hours_saved=Amount(value=164.8, lower=150.4, upper=179.6),
                gpus=4,
                winning_temperatures=BUCKETS[:4],
                losing_temperatures=(">1",),
                winning_loads=wins,
                losing_loads=("33-64",),
            ),
            traffic=traffic(
                284_310, 312_440_118, 71_883_902, 555_600.0, 402_120.0, seconds_off=28_800.0,
                seconds_mixed=3600.0, busy_off=25_380.0, requests_before=261_002,
                generation_tokens_before=66_100_450,
            ),
            temperatures=temperatures(PAYS, 284_310, off=True),
            loads=loads(),
            crossing=Crossing(running=31.6),
            best_k=ReportBestK(k=3, now=4, speedups=(1.0, 1.36, 1.58, 1.66, 1.62)),
            what_if=WhatIf(loads=wins, setting=((1, 32, 4), (33, 512, 0)), share=0.11),
            objectives=(
                ReportObjective(
                    name="first-token", metric="ttft", threshold=0.5, objective=0.99,
                    window=30 * 86400.0, requests=284_310, bad=3321.4, spent=0.272,
                    budget_left=0.611,
                    worst_hour=WorstHour(start=SINCE + 61 * HOUR, requests=2950, bad=411.2),
                ),
                ReportObjective(
                    name="pace", metric="tpot", threshold=0.05, objective=0.999,
                    window=7 * 86400.0, requests=283_900, bad=401.0, spent=1.412,
                    budget_left=-0.412,
                    worst_hour=WorstHour(start=SINCE + 62 * HOUR, requests=2871, bad=88.0),
                ),
            ),
            goodput=(
                _goodput("all", 284_310, 603_600.0, 0.471, (0.4648, 0.4655), (0.9869, 0.9883)),
                _goodput("on", 251_400, 531_600.0, 0.4729, (0.4691, 0.4698), (0.992, 0.9934)),
                _goodput("off", 32_910, 72_000.0, 0.4571, (0.4345, 0.4345), (0.9506, 0.9506)),
            ),
            incidents=(incident(SINCE + 57 * HOUR), incident(UNTIL - 50_000, over=False)),
            breaches=(
                ReportBreach(
                    rule="net-negative", temperature="all", severity="critical", count=2,
                    seconds=4380.0, last=UNTIL - 50_600.0,
                ),
                ReportBreach(
                    rule="losing-bucket", temperature=">1", severity="warning", count=9,
                    seconds=96_400.0, last=UNTIL - 4000.0,
                ),
            ),
            seconds_off_by_guard=72_200.0,
            health=health(
                586_500.0, 117_310, 212, restarts=3, coverage=0.973, source="tap",
                uncovered={"several": 5120, "disconnected": 1873, "no_record": 41}, gap_count=3,
                gaps=(
                    Gap(start=SINCE + 74 * HOUR, end=SINCE + 79 * HOUR),
                    Gap(start=SINCE + 101 * HOUR, end=SINCE + 101 * HOUR + 240),
                ),
                warnings=("the tap was away for 12 minutes on 2026-11-05",),
            ),
            changes=(
                ReportChange(
                    at=SINCE + 79 * HOUR,
                    what="vLLM 0.31.0 became 0.32.0; draft tokens 5 became 4",
                    before=ReportSide(
                        hours=24.0, acceptance_rate=0.583, mean_length=3.91, tpot_mean=0.0152,
                        tpot_p50=0.0129, tpot_p99=0.0521, buckets=near, speedup=measured(1.51),
                    ),
                    after=ReportSide(
                        hours=24.0, acceptance_rate=0.594, mean_length=3.37, tpot_mean=0.0137,
                        tpot_p50=0.0121, tpot_p99=0.0466, buckets=near, speedup=measured(1.64),
                    ),
                ),
            ),
            series=series(PAYS),
            experiments=(_comparison(), _probe()),
            more_experiments=2,
        )
    )  # fmt: skip


def _goodput(
    mode: Any, requests: float, watched: float, offered: float, met: tuple[float, float],
    share: tuple[float, float],
) -> ReportGoodput:  # fmt: skip
    (low, high), (least, most) = met, share
    return ReportGoodput(
        mode=mode, requests=requests, watched=watched, offered=offered,
        met=Bounds(lower=low, upper=high), share=Bounds(lower=least, upper=most),
    )  # fmt: skip


def _probe() -> Experiment:
    def row(temperature: float, zone: Any, rate: Ratio, speedup: Ratio) -> ProbedTemperature:
        return ProbedTemperature(
            temperature=temperature, acceptance_rate=rate, zone=zone, speedup=speedup
        )

    return Experiment(
        at=SINCE + 34 * HOUR,
        kind="probe",
        complete=False,
        speculation=True,
        asked="at temperatures 0, 0.7, 1.3, 4 requests at a time",
        sentence=(
            "Break-even at load 3-4, measured: 41.2% (39.1-43.3); wins at 0; near the line at 0.7."
        ),
        temperatures=(
            row(0.0, "wins", Ratio(value=0.742, lower=0.711, upper=0.768),
                Ratio(value=1.91, lower=1.82, upper=2.01)),
            row(0.7, "near", Ratio(value=0.418, lower=0.391, upper=0.447),
                Ratio(value=1.01, lower=0.97, upper=1.05)),
        ),
        break_even_acceptance=Ratio(value=0.412, lower=0.391, upper=0.433),
    )  # fmt: skip


def _comparison() -> Experiment:
    return Experiment(
        at=SINCE + 55 * HOUR,
        kind="comparison",
        complete=True,
        speculation=True,
        asked="with and without speculation at concurrency 1, 8, 32, temperatures 0, 0.7",
        sentence=(
            "Ship it: with speculation requests are 1.49 times as fast (95% interval 1.42 to 1.56)."
            " From about 31 requests at once on it is slower."
        ),
        loads=tuple(
            MeasuredLoad(
                concurrency=load, rate=None, throughput=on, throughput_off=off,
                speedup=measured(speedup), verdict="ship" if speedup > 1 else "do_not",
            )
            for load, on, off, speedup in (
                (1, 141.2, 63.1, 2.24), (8, 812.0, 470.3, 1.73), (32, 1490.0, 1731.0, 0.86),
            )
        ),
        speedup=measured(1.49),
        crossing=27.3,
        verdict="ship",
    )  # fmt: skip


def _bench() -> Experiment:
    return Experiment(
        at=SINCE + 20 * HOUR,
        kind="bench",
        complete=False,
        speculation=False,
        asked="without speculation at concurrency 16 and 4 requests a second, temperature 0",
        sentence="At most 1.31k tokens a second, at concurrency 16.",
        loads=(
            MeasuredLoad(concurrency=16, rate=None, throughput=1310.0, per_user=84.2),
            MeasuredLoad(
                concurrency=None, rate=4.0, throughput=402.0, tpot_p99=0.031, complete=False
            ),
        ),
    )


def loses() -> ModelReport:
    recipes = {
        label: Recipe(each.share, each.rate * 0.7, each.speed * 1.4, each.speedup * 0.52)
        for label, each in PAYS.items()
    }
    return finished(
        ModelReport(
            target="code-32b",
            model_name="Qwen/Qwen2.5-Coder-32B-Instruct",
            answer=ReportAnswer(
                outcome="loses",
                sentence="",
                recommendation="",
                speedup=Ratio(value=0.88, lower=0.84, upper=0.92),
                hours_saved=Amount(value=-19.3, lower=-26.1, upper=-12.2),
                winning_temperatures=BUCKETS[:2],
                losing_temperatures=BUCKETS[2:],
                winning_loads=("1", "2", "3-4", "5-8"),
                losing_loads=("9-16", "17-32", "33-64"),
            ),
            traffic=traffic(
                96_120, 211_004_388, 40_233_871, 601_200.0, 522_300.0, seconds_off=3600.0,
                busy_off=3100.0,
            ),
            temperatures=temperatures(recipes, 96_120, off=True),
            loads=loads(scale=0.6),
            crossing=Crossing(running=9.4),
            best_k=ReportBestK(k=0, now=4, speedups=(1.0, 0.97, 0.95, 0.92, 0.88)),
            what_if=WhatIf(
                loads=("1", "2", "3-4", "5-8"), setting=((1, 8, 4), (9, 512, 0)), share=0.62
            ),
            incidents=(incident(SINCE + 100 * HOUR),),
            seconds_off_by_guard=22_200.0,
            health=health(604_800.0, 120_960, coverage=1.0, source="proxy"),
            series=series(recipes, seed=8),
            experiments=(_bench(),),
        )
    )  # fmt: skip


def assumed() -> ModelReport:
    return finished(
        ModelReport(
            target="embed-and-chat",
            model_name="mistralai/Mistral-Small-3.2-24B-Instruct-2506",
            answer=ReportAnswer(
                outcome="unknown",
                sentence="",
                recommendation="",
                speedup=Ratio(value=1.4, basis="assumed"),
                missing="no baseline at any load that there was",
            ),
            traffic=traffic(12_004, 5_220_119, 2_101_340, 603_000.0, 88_200.0),
            temperatures=(temperature("all", Recipe(1.0, 0.52, 1.0, 1.4), 12_004, off=False),),
            loads=tuple(replace(load, step_cost=None) for load in loads(off=False)[:3]),
            health=health(603_000.0, 120_600, 31, restarts=1, source="server"),
            series=ReportSeries(
                step=HOUR,
                acceptance={"all": series(PAYS, seed=9).acceptance["all"]},
                latency=series(PAYS, off=False, seed=9).latency,
            ),
        )
    )


def blank(target: str = "quiet", model_name: str = "tiny", outcome: str = "no_traffic") -> Any:
    """A model of which next to nothing is known."""
    return ModelReport(
        target=target,
        model_name=model_name,
        answer=ReportAnswer(
            outcome=outcome,  # type: ignore[arg-type]
            sentence="There was no traffic.",
            recommendation="Nothing to do.",
        ),
        traffic=traffic(),
        temperatures=(
            Temperature(
                temperature="all",
                requests=0,
                share=None,
                acceptance=acceptance(0, 0.0),
                acceptance_before=None,
                ttft=ReportLatency(),
                tpot=ReportLatency(),
            ),
        ),
        health=health(0.0, 0),
        series=ReportSeries(step=HOUR),
    )
