"""What the status page shows, mostly as golden files, and that whatever it shows is text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from specwatch.domain.interval import Interval
from specwatch.domain.model import Histogram, Mode, Source, Window
from specwatch.domain.speedup import PresentSpeedup, Unjudged
from specwatch.domain.switchback_results import ExperimentStatus
from specwatch.errors import ScrapeReason, StoreUnavailable
from specwatch.guard.state import Cause, GuardState, Incident, Phase
from specwatch.guard.status import GuardStatus
from specwatch.pages.status_html import StatusHistory, status_html
from specwatch.pages.status_table import Selection, rows, table
from specwatch.rules.decisions import TargetDecision
from specwatch.scrape.coverage import Coverage
from specwatch.scrape.engine_stop import EngineStop
from specwatch.scrape.taps import Trouble
from specwatch.status import (
    DaemonStatus,
    DeliveryStatus,
    Failure,
    JudgingStatus,
    PagerStatus,
    SourceStatus,
    StoreStatus,
    TapStatus,
    TargetStatus,
)
from specwatch.store.guard_records import StepRecord
from tests.plugins.golden import Golden
from tests.report import page
from tests.report.page import Element
from tests.segments import segment
from tests.web.decided import change, decided, unlike
from tests.web.statuses import NOW, STANDBY, Surface, daemon, minute, of_tap, target

START = 1_699_999_980
HTML = "<script>alert(1)</script>\n\"'><img src=x onerror=alert(1)>\u202e😀&amp;"


def read(surface: Surface, path: str = "/", status: int = 200) -> Element:
    answer = surface.get(path)
    assert answer.status == status
    return page.read(answer.body.decode())


def hour(**selection: Any) -> Iterator[Window]:
    """Minutes of a tap's two temperatures and of all, which accept half."""
    for number in range(30):
        start = START - 60 * (29 - number)
        whole = {"target": selection["target"], "model_name": selection.get("model_name", "llama")}
        yield minute(start, **whole)
        for label, drafts in (("0", 60), ("(0.7,1]", 30)):
            yield of_tap(start, label, drafts=drafts, of=90, server=100, **whole)


def with_all(surface: Surface) -> None:
    """A measured target with a history, a guard and decisions."""
    state = GuardState(
        "chat",
        phase=Phase.DISABLED,
        since=NOW - 3600,
        goal=Mode.OFF,
        rearm_at=NOW + 7200,
        incident=Incident("i-1", Cause.RULE, 0),
    )
    segment = of_tap(START, "output=tool_call", drafts=30, of=90, server=100)
    arms = {"2": Interval(1.1, 1.05, 1.16, 7), "0": None}
    seen = TapStatus(Source.TAP, models={"llama": Coverage(Source.TAP, 90, 100, {}, {})})
    surface.status = daemon(
        target(
            decision=decided(),
            guard=GuardStatus("act", state, ours=True),
            tap=seen,
            recent=(minute(START), segment),
            labels={"zone": "a"},
            configured_group="chatters",
            experiment=ExperimentStatus(arm="0", episodes=7, best="2", speedups=arms),
        ),
        target("guessed", decision=decided(measured=False, target="guessed")),
        deliveries=(
            DeliveryStatus("webhook", undelivered=False, last_delivery=NOW - 60),
            DeliveryStatus("mail", undelivered=False),
        ),
        discovery=(SourceStatus("file_sd c.json", 1, NOW - 5),),
        pagers=(
            PagerStatus("http://a:9093", firing=2, last_success=NOW - 20),
            PagerStatus("http://b:9093", behind=True, last_success=NOW - 20),
            PagerStatus("http://c:9093"),
        ),
    )
    surface.windows = hour
    surface.verdicts = lambda **_: [change()]
    surface.steps = lambda **_: [
        StepRecord("chat", 3, NOW - 30, "left", "i-1", "suspect", "confirmed", "it lasts", {})
    ]


def with_troubles(surface: Surface) -> None:
    """Everything that can be wrong with a daemon and its targets."""
    failure = Failure(ScrapeReason.REFUSED, "nothing listens", NOW - 600)
    surface.status = daemon(
        target("good"),
        target("down", failure=failure, failures={ScrapeReason.REFUSED: 300}),
        target("odd", tap=TapStatus(trouble=(Trouble("x", "it counts twice", "llama"),))),
        stuck=("odd",),
        store=StoreStatus(
            "SQLite",
            error="disk full",
            behind_since=NOW - 300,
            queued=7,
            dropped=3,
            damaged_files=("specwatch.db.damaged-20260101T000000Z",),
        ),
        judging=JudgingStatus(defects=2, dropped=4, error="it is locked"),
        pagers=(PagerStatus("http://a:9093", failing_since=NOW - 60, error="no route"),),
        discovery=(
            SourceStatus("dns A a.example:1", 3, failure=Failure("timeout", "no answer", NOW - 60)),
            SourceStatus("file_sd b.json", 2, NOW - 5, refused=("'a/b' is not an address",)),
        ),
        deliveries=(
            DeliveryStatus("mail", undelivered=True, error="it was refused"),
            DeliveryStatus("webhook", undelivered=False, error="the file of its token is missing"),
        ),
    )


def markup_of(surface: Surface, path: str = "/") -> str:
    """The body of the page as it is sent; it is well formed."""
    text = surface.get(path).body.decode()
    page.read(text)
    text = re.sub(r"<(style|script)>.*?</\1>\n?", "", text, flags=re.DOTALL)
    return re.sub(r'data-version="\w+"', 'data-version=""', text)


@pytest.mark.golden
def test_the_page_shows_all_that_is_known(surface: Surface, golden: Golden) -> None:
    with_all(surface)
    golden("web/status.html", markup_of(surface))


@pytest.mark.golden
def test_the_page_of_one_target_shows_it_alone(surface: Surface, golden: Golden) -> None:
    with_all(surface)
    surface.report = lambda **_: 1 / 0  # plots have tests of their own
    golden("web/status-target.html", markup_of(surface, "/?target=chat"))


@pytest.mark.golden
def test_what_is_wrong_is_told_at_the_top_and_with_its_target(
    surface: Surface, golden: Golden
) -> None:
    with_troubles(surface)
    golden("web/status-troubles.html", markup_of(surface))


def dead(name: str = "chat", **changes: Any) -> TargetStatus:
    """A target that was read last 10 minutes ago, when it was busy and speculation paid."""
    failure = Failure(ScrapeReason.REFUSED, "nothing listens", NOW - 595)
    known = {"failure": failure, "last_success": NOW - 600, "load": 8, "decision": decided()}
    return target(name, **{**known, **changes})


def unjudged(decision: TargetDecision) -> TargetDecision:
    """For 40 minutes most of the traffic came at a load without a baseline."""
    present = PresentSpeedup(
        unjudged=Unjudged(NOW - 2400, "no baseline at the load that there was")
    )
    models = {name: replace(known, present=present) for name, known in decision.models.items()}
    return replace(decision, models=models)


def situations() -> dict[str, DaemonStatus]:
    """What may be known of whether speculation pays."""
    result = decided()
    known = result.models["llama"]
    no_bins = replace(known, assessment=replace(known.assessment, bins=()))
    stop = EngineStop(NOW - 780, False, 0.1, 2000)
    odd = minute(START, ttft=Histogram((1.0,), (1, 0), float("inf")))
    seen = TapStatus(source=Source.TAP, models={"llama": Coverage(Source.TAP, 90, 100, {}, {})})
    return {
        "it pays": daemon(target(decision=result)),
        "it is assumed": daemon(target(decision=decided(measured=False))),
        "requests are unlike those of the baseline": daemon(target(decision=unlike())),
        "they are since 15 minutes": daemon(target(decision=unlike(since=NOW - 900))),
        "it is unjudged": daemon(target(decision=unjudged(result))),
        "right after a calibration": daemon(
            target(decision=replace(result, models={"llama": no_bins}))
        ),
        "it is off": daemon(target(models={"llama": Mode.OFF}, decision=result)),
        "no traffic": daemon(target()),
        "no minute has ended": daemon(target(recent=())),
        "the mode is unknown": daemon(target(models={"llama": Mode.UNKNOWN})),
        "the engine switched it off": daemon(
            target(models={"llama": Mode.STOPPED}, stops={"llama": stop})
        ),
        "it was never read": daemon(target(last_success=None, recent=(), models={})),
        "never read, a model is configured": daemon(target(last_success=None, recent=())),
        "it cannot be read now": daemon(dead(tap=seen)),
        "its loop is stuck": daemon(dead(failure=None), stuck=("chat",)),
        "two of four are not read": daemon(
            target("a"), dead("b"), target("c", last_success=None), target("d")
        ),
        "no target": replace(daemon(), targets=()),
        "invalid numbers": daemon(target(recent=(odd,), scrape_seconds=None, load=float("nan"))),
    }


def told(surface: Surface) -> dict[str, Any]:
    """The page's words, by where they are."""
    root = read(surface)
    parts: dict[str, Any] = {"title": next(root.all("title")).words}
    marks = ("banner", "lead", "answer", "soft small", "notes")
    for element in root.all("section", "p", "ul"):
        mark = element.attributes.get("class", "").removesuffix(" calm")
        if mark in marks:
            parts.setdefault(mark, []).append(element.words)
        elif element.name == "p" and not mark and element.words not in parts["banner"][0]:
            parts.setdefault("facts", []).append(element.words)
    for one in root.all("table"):
        caption = re.split("[.;]", next(one.all("caption")).words)[0]
        lines = [" | ".join(cell.words for cell in row.all("th", "td")) for row in one.all("tr")]
        parts[caption] = lines[1:]
    return parts


@pytest.mark.golden
def test_it_says_plainly_what_is_known_and_what_is_not(surface: Surface, golden: Golden) -> None:
    """What is known of a target that cannot be read is of before, and does not look alive."""
    surface.windows = hour
    result = {}
    for title, status in situations().items():
        surface.status = status
        result[title] = told(surface)
    text = yaml.safe_dump(result, sort_keys=False, width=98, allow_unicode=True)
    golden("web/status-situations.yml", text)


def test_the_answer_comes_before_the_figures_it_rests_on(surface: Surface) -> None:
    with_all(surface)
    root = read(surface)
    assert root.words.index("Speculation pays") < root.words.index("By segment")
    assert root.count("h1") == 1


@pytest.mark.parametrize("broken", ["model", "target"])
def test_one_target_or_model_that_cannot_be_shown_takes_down_nothing(
    surface: Surface, broken: str
) -> None:
    sound = decided()
    both = replace(sound, models={**sound.models, "other": replace(sound.models["llama"])})
    odd = replace(both.models["other"], assessment=None)  # type: ignore[arg-type]
    if broken == "model":
        bad = target(
            "bad",
            models={"llama": Mode.ON, "other": Mode.ON},
            decision=replace(both, models={**both.models, "other": odd}),
        )
    else:
        bad = target("bad", guard=object())
    reported: list[str] = []
    surface.status = daemon(
        target("good", decision=sound), bad, not_shown=lambda name, _: reported.append(name)
    )
    text = read(surface).words
    assert "Speculation pays: speedup 2.00" in text
    assert "It cannot be shown, for a defect of specwatch: see its log." in text
    assert set(reported) == {"bad"}
    known = surface.get("/api/v1/targets").json["targets"]
    assert [item["name"] for item in known] == ["good", "bad"]
    assert [entry["not_shown"] for entry in known] == [[], ["other" if broken == "model" else ""]]
    assert known[0]["decision"]["models"]["llama"]["speedup"]["basis"] == "measured"
    if broken == "model":
        assert set(known[1]["decision"]["models"]) == {"llama"}
        assert text.count("Speculation pays: speedup 2.00") == 2, "the other model is shown"


@pytest.mark.parametrize(
    ("minutes", "words"),
    [
        ((0, 1, 2), "By segment, last 3 min with speculation. "),
        ((0, 1, 10, 29), "By segment, 4 min with speculation within 30 min. "),
        ((28, 29), "By segment, 2 min with speculation, which ended 29 min ago. "),
        ((20, 29), "By segment, 2 min with speculation within 10 min, which ended 21 min ago."),
    ],
)
def test_it_says_over_how_many_minutes_its_figures_are(
    surface: Surface, minutes: tuple[int, ...], words: str
) -> None:
    """The minutes that there were, and when they ended if that was not just now."""
    surface.windows = lambda **_: (minute(START - 60 * (1 + ago)) for ago in minutes)
    text = read(surface).words
    assert words in text
    assert "Counted by the engine." in text


def test_a_daemon_of_a_shard_names_it(surface: Surface) -> None:
    surface.status = daemon(shard="2/3")
    assert "specwatch 0.1.0 on left, shard 2/3, up" in " ".join(read(surface).text.split())
    assert "No target of shard 2/3 is called" in surface.get("/?target=elsewhere").body.decode()


def test_a_process_that_stands_by_says_which_one_watches(surface: Surface) -> None:
    surface.status = daemon(lease=STANDBY)
    page = read(surface)
    assert "This process stands by. http://birch:9469 has watched for" in page.text
    links = [link for link in page.links.values() if link.startswith("http://")]
    assert links == ["http://birch:9469"]
    refusal = read(surface, "/?target=code", status=404)
    assert "watches no target; http://birch:9469 watches." in refusal.text
    surface.status = daemon(lease=replace(STANDBY, never_read=("chat-2",)))
    assert "chat-2: never read by a daemon of this name" in read(surface).text
    surface.status = daemon(lease=replace(STANDBY, holder="javascript:alert(1)", error=HTML))
    page = read(surface)
    assert "so it could not take over" in page.text
    assert not any("javascript" in link for link in page.links.values())


@pytest.mark.parametrize("reader", ["windows", "verdicts", "steps"])
def test_without_its_store_it_shows_what_memory_has(surface: Surface, reader: str) -> None:
    def away(**_: object) -> Any:
        raise StoreUnavailable("the database is locked")

    with_all(surface)
    setattr(surface, reader, away)
    text = read(surface).words
    assert "from memory The store cannot be read: the database is locked." in text
    assert "Speculation pays" in text
    assert "last 60 s" in text


def hostile_status(name: str) -> DaemonStatus:
    odd = minute(START, target=name, model_name=name)
    state = GuardState(name, phase=Phase.HELD, why=name, waiting=name)
    failure = Failure(name, name, NOW - 5)  # type: ignore[arg-type]
    return daemon(
        target(
            name,
            models={name: Mode.ON},
            recent=(odd,),
            engine_version=name,
            failure=failure,
            failures={name: 3},
            decision=decided(target=name, model_name=name),
            tap=TapStatus(trouble=(Trouble(name, name, name),)),
            guard=GuardStatus(name, state, holder=name, error=name),
        ),
        daemon=name,
        version=name,
        stuck=(name,),
        store=StoreStatus(name, error=name),
        judging=JudgingStatus(error=name),
        pagers=(PagerStatus(name, failing_since=NOW, error=name),),
    )


@pytest.mark.parametrize("name", [HTML + "y" * 10_000, "\ud800", "javascript:alert(1)"])
def test_whatever_comes_from_outside_is_text(surface: Surface, name: str) -> None:
    surface.status = hostile_status(name)
    surface.windows = lambda **_: iter(
        [
            minute(START, target=name, model_name=name),
            of_tap(START, name, target=name, model_name=name, drafts=5, of=5, server=5),
        ]
    )
    surface.verdicts = lambda **_: [
        change(target=name, model_name=name, segment=segment(name), rule=name, verdict=name)
    ]
    surface.steps = lambda **_: [StepRecord(name, 1, NOW, name, name, name, name, name, {})]
    answer = surface.get("/")
    assert answer.status == 200
    assert len(answer.body) < 300_000
    assert "\u202e" not in answer.body.decode()
    root = page.read(answer.body.decode())
    tags = {element.name for element in root.all()}
    assert tags.isdisjoint({"img", "iframe", "object", "base"})
    assert (root.count("script"), root.count("form")) == (1, 0)
    for element in root.all():
        names = element.attributes
        assert not any(name.startswith("on") or name in ("style", "src") for name in names)
    for href in root.links.values():
        assert href.startswith(("/", "#"))
        assert not href.startswith("//")


def test_every_table_is_told_and_can_be_reached(surface: Surface) -> None:
    """With a caption, headers of columns and rows, and by the keyboard where it scrolls."""
    with_all(surface)
    root = read(surface)
    tables = root.count("table")
    assert tables == root.count("caption") > 7
    scopes = ("col", "row", "colgroup")
    assert all(cell.attributes["scope"] in scopes for cell in root.all("th"))
    every = [element.attributes for element in root.all()]
    regions = [attributes for attributes in every if attributes.get("role") == "region"]
    assert len(regions) == tables
    ids = {attributes["id"] for attributes in every if "id" in attributes}
    assert all(region["tabindex"] == "0" for region in regions)
    names = [region["aria-labelledby"] for region in regions]
    assert {part for name in names for part in name.split()} <= ids
    assert len(set(names)) == tables
    assert next(root.all("html")).attributes == {"lang": "en"}
    assert next(root.all("time")).attributes["datetime"] == "2023-11-14T22:14:00Z"


def fleet(count: int) -> DaemonStatus:
    """Every third target cannot be read, every fifth has another model."""
    failure = Failure(ScrapeReason.TIMEOUT, "z" * 400, NOW - 60)
    known = decided(rules=(), slos=())
    targets = []
    for n in range(count):
        name = "qwen" if n % 5 == 0 else "llama"
        decision = replace(known, models={name: known.models["llama"]})
        targets.append(
            target(
                f"t{n:03}",
                decision=decision,
                models={name: Mode.ON},
                configured_group="odd" if n % 2 else "even",
                labels={"zone": f"z{n % 2}"},
                recent=(minute(START, target=f"t{n:03}", model_name=name),),
                failure=failure if n % 3 == 0 else None,
            )
        )
    return daemon(*targets)


def test_many_targets_are_small_pages_the_worst_first(surface: Surface) -> None:
    surface.status = fleet(110)
    asked: list[str] = []
    surface.windows = lambda **chosen: asked.append(chosen["target"]) or hour(**chosen)
    every: list[str] = []
    for number in (1, 2, 3):
        answer = surface.get(f"/?page={number}")
        assert len(answer.body) < 150_000
        root = page.read(answer.body.decode())
        every += [link for link in root.links if re.fullmatch(r"t\d{3}", link)]
    assert asked == []
    assert "t000 cannot be read since 22:13 UTC (60 s)" in root.words
    assert "Likewise: t003, t006, t009 and 33 more." in root.words
    assert every[:3] == ["t000", "t003", "t006"]
    assert sorted(every) == [f"t{n:03}" for n in range(110)]
    assert read(surface, "/").links["page 3"] == "/?page=3"


def test_the_table_is_chosen_and_arranged() -> None:
    every = rows(fleet(110))
    expected = {
        Selection(state="pays"): ["t001", "t002", "t004"],
        Selection(search="T10 llama"): ["t102", "t108", "t101"],
        Selection(model="qwen", sort="target"): ["t000", "t005", "t010"],
        Selection(group="model", sort="target", page=3): ["t098", "t099", "t101"],
        Selection(group="model"): ["t000", "t015", "t030"],
        Selection(group="group", sort="target"): ["t000", "t002", "t004"],
        Selection(group="group", search="zone=z1"): ["t003", "t009", "t015"],
        Selection(group="group", search="even"): ["t000", "t006", "t012"],
        Selection(group="state", sort="target", page=2): ["t020", "t022", "t023"],
        Selection(sort="speedup"): ["t001", "t002", "t004"],
        Selection(search="nobody"): [],
    }
    assert expected == {
        asked: [row.target for _, group in table(every, asked).groups for row in group][:3]
        for asked in expected
    }


def test_a_group_s_model_is_named_once() -> None:
    status = fleet(10)

    def models(**asked: str) -> int:
        root = page.read(status_html(status, StatusHistory(), Selection(**asked)))
        one = next(one for one in root.all("table") if "Speedup now" in one.words)
        return sum(row.attributes.get("class") == "soft model" for row in one.all("span"))

    assert (models(), models(group="state"), models(group="model")) == (10, 10, 0)


def test_a_target_with_many_models_shows_and_reads_few(surface: Surface) -> None:
    models = {f"m{n:03}": Mode.ON for n in range(50)}
    surface.status = daemon(target(models=models, recent=()))
    asked: list[str] = []
    surface.windows = lambda **chosen: asked.append(chosen["model_name"]) or iter(())
    text = read(surface).words
    assert asked == ["m000", "m001", "m002", "m003", "m004"]
    assert "45 more models" in text


def test_per_request_acceptance_of_all_is_the_sum_of_the_temperatures(surface: Surface) -> None:
    surface.windows = hour
    assert "last 50.0% 50.0% 100% 25 / 69 / 94 270" in read(surface).words
