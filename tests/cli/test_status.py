"""``specwatch status`` against a daemon's own HTTP surface."""

from __future__ import annotations

import json
import os
import pty
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.responses import Response

from specwatch.cli import group, options, status, tables
from specwatch.cli.tables import coverage_lines
from specwatch.domain.breakeven import BinBreakEven
from specwatch.domain.interval import Interval
from specwatch.domain.model import Gauges, Histogram, Mode, Source
from specwatch.domain.tap_keys import UNCOVERED
from specwatch.errors import ScrapeReason
from specwatch.rules.decisions import TargetDecision
from specwatch.rules.summary import CoverageView
from specwatch.rules.verdicts import Verdict
from specwatch.scrape.coverage import Coverage
from specwatch.scrape.engine_stop import EngineStop
from specwatch.scrape.taps import Trouble
from specwatch.status import (
    DaemonStatus,
    Failure,
    LeaseStatus,
    ProxyStatus,
    SourceStatus,
    StoreStatus,
    TapStatus,
)
from specwatch.web.daemon_view import TargetView
from tests.cli.conftest import Run, texts
from tests.segments import segment
from tests.test_problems import losing
from tests.web.decided import (
    BREACHED,
    MINOR,
    PASSING,
    PENDING,
    SILENT,
    UNLIKE,
    decided,
    unlike,
)
from tests.web.statuses import HOSTILE, NOW, STANDBY, Surface, daemon, minute, of_tap, target

START = 1_699_999_980
FAILURE = Failure(ScrapeReason.REFUSED, "nothing listens at http://127.0.0.1:8000", NOW - 180)


def test_a_healthy_daemon_is_shown_in_eighty_columns(run: Run, surface: Surface) -> None:
    long_name = "meta-llama/Llama-3.3-70B-Instruct"
    beyond = Histogram((0.1, 10.0), (50, 40, 10), 99.0)
    surface.status = daemon(
        target(
            models={long_name: Mode.ON},
            recent=(
                minute(START, model_name=long_name),
                of_tap(
                    START,
                    "unknown",
                    drafts=300_000,
                    of=400_000,
                    server=500_000,
                    model_name=long_name,
                ),
                msgspec.structs.replace(
                    minute(START, model_name=long_name, temperature="(0.3,0.7]", ttft=beyond),
                    source=Source.TAP,
                ),
            ),
            restarts=1,
            tap=TapStatus(
                Source.TAP,
                (
                    Trouble("gone", "the server was restarted without it"),
                    Trouble("low_coverage", "the tap covers little", long_name),
                ),
                models={
                    long_name: Coverage(
                        Source.TAP, 400_000, 500_000, {"record": 9, "derived": 3}, {"several": 2}
                    )
                },
            ),
        )
    )
    done = run("status", "--url", surface.url)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "The tap of chat: the server was restarted without it.",
        "The tap of chat: the tap covers little.",
        "",
        "specwatch 0.1.0 on left, up 10 min",
        "SQLite database /var/lib/specwatch/specwatch.db",
        "12 windows written",
        "watching 1 target",
        "",
        "chat  http://127.0.0.1:8000  engine 0.32.0",
        "scraped 3 s ago in 4.20 ms, 1 restart of the engine seen",
        "tap: the server was restarted without it",
        "meta-llama/Llama-3.3-70B-Instruct",
        "speculation on, last 60 s: 1.5 running, KV cache up to 25.0%, 1 preemption",
        "segment  acceptance  tok/step  requests  TTFT p50  TTFT p99  TPOT p50  TPOT p99",
        "all           50.0%      3.00         9   ~100 ms   ~500 ms    ~10 ms    ~20 ms",
        "tap: covers 80.0% of drafts",
        "  not covered: 2 requests, more than one completion was asked for, which carry",
        "    no record",
        "  of 25% of requests the acceptance is derived: the tokens of each streamed",
        "    step, as the engine keeps no record",
        "tap: the tap covers little",
        "temp      share drafts accept length P10/50/90    TTFT TTFT p99   TPOT TPOT p99",
        "(0.3,0.7]    0%    100  50.0%   3.00         - ~100 ms   > 10 s ~10 ms   ~20 ms",
        "unknown    100%   300k  50.0%   3.00  25/69/94 ~100 ms  ~500 ms ~10 ms   ~20 ms",
    ]


def test_it_begins_with_the_worst_problems_and_what_to_do(run: Run, surface: Surface) -> None:
    gone = target("gone", failure=Failure(ScrapeReason.REFUSED, "connection refused", NOW - 60))
    slow = [losing(f"code-{n}") for n in range(2)]
    taps = [target(f"p{n}", tap=TapStatus(trouble=(Trouble("gone", "lost"),))) for n in range(9)]
    surface.status = daemon(gone, *taps, *slow)
    done = run("status", "--url", surface.url)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("code-0 is 43% slower with speculation since ")
    assert lines[2].startswith("  Restart vLLM without speculation: `specwatch strip` prints its")
    text = " ".join(done.stdout.split())
    assert text.index("code-1 is 43% slower") < text.index("gone cannot be read since ")
    assert "The tap of p0: lost. Likewise: p1, p2, p3 and 5 more. specwatch 0.1.0" in text
    surface.status = daemon(*slow, gone, msgspec.structs.replace(gone, name="too"), *taps[:2])
    assert "6 problems in all" in run("status", "--url", surface.url).stdout


def test_without_a_problem_it_begins_with_for_how_many_it_pays(run: Run, surface: Surface) -> None:
    surface.status = daemon(target(recent=BUCKETS, decision=decided((), ())))
    first = run("status", "--url", surface.url).stdout.splitlines()[0]
    assert first == "No problem is known. Speculation pays for 1 model."


@pytest.mark.parametrize("reason", [*UNCOVERED, HOSTILE, "x" * 500])
def test_what_was_not_covered_fits_eighty_columns(reason: str) -> None:
    seen = CoverageView(
        source="tap", drafts=9, coverage=0.5, records={"derived": 1}, uncovered={reason: 10**9}
    )
    lines = texts(coverage_lines(seen))
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)


BUCKETS = (
    minute(START),
    of_tap(START, "0", drafts=50, of=100, server=100),
    of_tap(START, ">1", drafts=50, of=100, server=100),
)


def at_cost(cost: float) -> DaemonStatus:
    """A daemon of a server whose speculative step takes so many plain ones."""
    (bin_,) = decided(()).models["llama"].assessment.bins
    line = Interval((cost - 1) / 4, 0.0, 1.0, 12)
    moved = replace(bin_, step_cost=Interval(cost, cost, cost, 12), acceptance=line)
    return daemon(target(decision=with_bins(moved)))


def with_bins(*bins: BinBreakEven) -> TargetDecision:
    known = decided(()).models["llama"]
    changed = replace(known, assessment=replace(known.assessment, bins=bins))
    return replace(decided(()), models={"llama": changed})


def at_load(running: float) -> DaemonStatus:
    """A daemon with two known loads, most of the tokens at the greater."""
    (bin_,) = decided(()).models["llama"].assessment.bins
    busy = replace(bin_, load_bin=7, share=0.9, step_cost=Interval(9.0, 9.0, 9.0, 12))
    window = msgspec.structs.replace(minute(START), gauges=Gauges(60.0, 60.0, 60 * running))
    bins = with_bins(replace(bin_, share=0.1), busy)
    return daemon(target(recent=(window,), decision=bins))


def in_breach(seen: Verdict) -> DaemonStatus:
    (finding,) = decided((BREACHED,)).findings
    changed = (replace(finding, seen=seen, segment=segment("(0,0.3]")),)
    return daemon(target(decision=replace(decided((BREACHED,)), findings=changed)))


BROKEN = TargetDecision(models={"llama": replace(decided().models["llama"], assessment=None)})
SHOWN: dict[str, tuple[DaemonStatus, int, list[str]]] = {
    "without a tap it says what to add": (
        daemon(target()),
        0,
        ["tap: none: temperatures unknown (specwatch tap flags, or tap proxy, adds one) "],
    ),
    "where speculation is not known it says what to do": (
        daemon(target(models={"llama": Mode.UNKNOWN})),
        0,
        ["speculation unknown, last", "It is not known whether the server speculates. llama"],
    ),
    "the target is healthy while its proxy fails": (
        daemon(target(tap=TapStatus(Source.PROXY, proxy=ProxyStatus("http://h:1", FAILURE)))),
        0,
        ["proxy failing for 3 min: nothing listens"],
    ),
    "a source of targets fails": (
        daemon(
            discovery=(
                SourceStatus("http_sd http://a", 2, failure=Failure("timeout", "hangs", NOW - 60)),
            )
        ),
        1,
        ["discovery by http_sd http://a: failing for 60 s, 2 targets kept: hangs"],
    ),
    "a source of targets works": (
        daemon(discovery=(SourceStatus("file_sd a.json", 1, NOW - 5),)),
        0,
        ["discovery by file_sd a.json: 1 target, read 5 s ago"],
    ),
    "a damaged file does not keep the daemon from working": (
        daemon(store=StoreStatus("x", damaged_files=("a\x1b[1m", "b", "c", "d"))),
        0,
        ["The database was damaged, and a new one was begun: a\\x1b[1m, b, c and 1 more beside"],
    ),
    "targets that fail come first": (
        daemon(target("a"), target("z", failure=FAILURE), target("b")),
        1,
        ["watching 3 targets, 1 failing", "z http", "failing for 3 min: nothing", "a http", "b h"],
    ),
    "a stuck target fails": (
        daemon(stuck=("chat",)),
        1,
        ["stuck, no scrape ended for three intervals: chat"],
    ),
    "a database that cannot be written fails": (
        daemon(
            store=StoreStatus("x", queued=7, dropped=2, error="it is locked", behind_since=NOW - 60)
        ),
        1,
        ["2 given up, 7 waiting, failing for 60 s: it is locked"],
    ),
    "a model that cannot be shown hides no other": (
        daemon(target("bad", decision=BROKEN), target("good", decision=decided((PASSING,)))),
        1,
        ["model llama cannot be shown, for a defect of specwatch", "speedup 2.00"],
    ),
    "a measured speedup has its interval and the line at this load": (
        daemon(target(recent=BUCKETS, decision=decided(()))),
        0,
        [
            "speedup 2.00 (1.95 to 2.05) per token over the last hour, measured against a baseline",
            "break-even at 3-4 running: 12.5% acceptance, now 50.0% (a step costs 1.50x) ",
            "best k: 2, predicted speedup per token 2.40; with 4 now 2.00 ",
            "drafts accept faster",
            "0 50% 50 50.0% 2.67x",
            ">1 50% 50 50.0% 0.80x",
        ],
    ),
    "without a baseline the speedup is an assumption": (
        daemon(target(recent=BUCKETS, decision=decided((), measured=False))),
        0,
        [
            "speedup about 2.1, assumed: no baseline; run specwatch calibrate ",
            "break-even at about 10.0% acceptance, by the assumed draft cost, now 50.0% ",
        ],
    ),
    "a speedup that is not of now is shown as an earlier one, or as unknown": (
        daemon(
            target("never", decision=unlike()), target("before", decision=unlike(since=NOW - 900))
        ),
        1,
        [
            f"the speedup is not known yet: {UNLIKE}; run specwatch calibrate break-even not known",
            f"the speedup is not known now: {UNLIKE}; run specwatch calibrate; until 2023-11-14"
            " 21:59 UTC it was 2.00 (1.95 to 2.05) per token over the last hour, measured",
        ],
    ),
    "rules and objectives have their numbers": (
        daemon(target(decision=decided())),
        1,
        [
            "breach: too-slow: speedup_ratio 2 (1.75 to 2.27), below 2.5, for 3 min",
            "pending: soon: acceptance_ratio 0.5, below 0.9, for ",
            "rules: 1 in breach, 1 pass, 2 without data",
            "objective first-token: used 50 times its error budget",
            "goodput: 0.83 of 1.67 requests/s met all objectives in the 18 min watched of the",
        ],
    ),
    "a breach of severity info is shown only": (daemon(target(decision=decided((MINOR,)))), 0, []),
    "what may become a breach is none": (
        daemon(target(decision=decided((PENDING, PASSING, SILENT)))),
        0,
        ["pending: soon"],
    ),
    "a breach of a model that is no longer served is shown": (
        daemon(target(decision=decided(model_name="gone"))),
        1,
        [" gone ", "breach: too-slow"],
    ),
    "a breach that is about to clear": (
        in_breach(Verdict.PASS),
        1,
        ["breach: too-slow at temperature (0,0.3]: speedup_ratio", "about to cle"],
    ),
    "a breach without data now": (in_breach(Verdict.NO_DATA), 1, ["no data now"]),
    "any acceptance is enough": (
        at_cost(0.9),
        0,
        ["break-even at 3-4 running: any acceptance, now 50.0% (a step costs 0.9"],
    ),
    "no acceptance is enough": (
        at_cost(6.0),
        0,
        ["break-even at 3-4 running: out of reach, now 50.0%"],
    ),
    "the line is that of the present load": (at_load(3.0), 0, ["break-even at 3-4 running"]),
    "else that of the load with most tokens": (at_load(10.0), 0, ["break-even at 65+ running"]),
    "a daemon that has just started": (
        daemon(
            target("new", models={}, recent=(), last_scrape=None, last_success=None),
            target("read", recent=(), models={"llama": Mode.ON, "": Mode.OFF}),
        ),
        0,
        ["not scraped yet", "speculation on; no whole minute seen since the last start or switch"],
    ),
}
"""A daemon, the exit code, and texts in their order, with each row of spaces as one."""


@pytest.mark.parametrize(("shown", "code", "parts"), SHOWN.values(), ids=SHOWN.keys())
def test_the_daemon_is_shown_and_failures_exit_with_1(
    run: Run, surface: Surface, shown: DaemonStatus, code: int, parts: list[str]
) -> None:
    surface.status = shown
    done = run("status", "--url", surface.url)
    assert (done.exit_code, done.stderr) == (code, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    text = " ".join(done.stdout.split()) + " "
    for part in parts:
        before, part, text = text.partition(part)
        assert part, f"not in its place: {before}"
    as_json = run("status", "--url", surface.url, "--json")
    assert (as_json.exit_code, as_json.stderr) == (code, "")
    assert json.loads(as_json.stdout) == surface.get("/api/v1/targets").json


def test_a_daemon_of_a_shard_names_it(run: Run, surface: Surface) -> None:
    surface.status = daemon(shard="2/3")
    assert "on left, shard 2/3, up" in run("status", "--url", surface.url).stdout


def test_a_process_that_stands_by_says_which_one_watches(run: Run, surface: Surface) -> None:
    surface.status = daemon(lease=STANDBY)
    words = " ".join(run("status", "--url", surface.url).stdout.split())
    assert (
        "This process stands by. http://birch:9469 has watched for 10 min; its lease ends in"
        in words
    )
    assert "in 6 s unless it renews it, and then this one takes over." in words
    surface.status = daemon(lease=replace(STANDBY, left=-0.5))
    words = " ".join(run("status", "--url", surface.url).stdout.split())
    assert "its lease has ended, and this one takes over now." in words
    assert run("status", "--url", surface.url).exit_code == 0


def test_before_the_first_minute_nothing_is_said_about_traffic(run: Run, surface: Surface) -> None:
    surface.status = daemon(target(recent=()))
    first = run("status", "--url", surface.url).stdout
    assert "Speculation is not measured for 1 model." in " ".join(first.split())
    surface.status = daemon(target())
    later = run("status", "--url", surface.url).stdout
    assert "Speculation has no traffic for 1 model." in " ".join(later.split())


def test_a_target_that_nobody_reads_is_a_failure(run: Run, surface: Surface) -> None:
    names = ("chat-2", "b", "c", "d", "e")
    surface.status = daemon(lease=replace(STANDBY, never_read=names))
    done = run("status", "--url", surface.url)
    words = " ".join(done.stdout.split())
    assert done.exit_code == 1
    assert "chat-2, b, c and 2 more: never read by a daemon of this name" in words
    assert "give it a name of its own (`daemon` in the configuration" in words


def test_a_lease_that_cannot_be_read_is_shown(run: Run, surface: Surface) -> None:
    surface.status = daemon(lease=LeaseStatus(error="no database"))
    result = run("status", "--url", surface.url)
    words = " ".join(result.stdout.split())
    assert result.exit_code == 1
    assert "stands by" not in words
    assert "so another one may take over: no database" in words


def test_what_is_not_known_is_not_shown(run: Run, surface: Surface) -> None:
    surface.status = daemon(target(models={"llama": Mode.OFF}, decision=decided()))
    off = run("status", "--url", surface.url).stdout
    assert "tap" not in off
    assert "break-even" not in off
    surface.status = daemon(target(recent=BUCKETS, decision=decided((), measured=False)))
    assumed = run("status", "--url", surface.url).stdout
    assert "measured" not in assumed
    assert "faster" not in assumed
    surface.status = daemon(target(decision=unlike()))
    assert "assumed" not in run("status", "--url", surface.url).stdout


def test_an_engine_that_switched_it_off_says_since_when(run: Run, surface: Surface) -> None:
    stop = EngineStop(NOW - 780, at_least=True, acceptance_rate=0.1, tokens=2000)
    stopped = {"models": {"llama": Mode.STOPPED}, "stops": {"llama": stop}}
    surface.status = daemon(target(**stopped, decision=decided()))
    shown = " ".join(run("status", "--url", surface.url).stdout.split())
    assert "speculation stopped" in shown
    assert shown.count("switched off by the engine since 2023-11-14 22:01 UTC or earlier") == 2
    assert "2,000 tokens without a draft, after an acceptance of 10.0%" in shown
    assert "break-even" not in shown
    answer = json.loads(run("status", "--url", surface.url, "--json").stdout)
    assert "stopped" in {problem["kind"] for problem in answer["problems"]}
    assert answer["targets"][0]["stops"]["llama"]["since"] == NOW - 780


def test_a_target_that_cannot_be_shown_hides_no_other(
    run: Run, surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    surface.status = daemon(target("bad"), target("good", decision=decided()))
    lines = tables.recent_lines

    def failing(target: TargetView, now: float) -> Any:
        return lines(target, now) if target.name == "good" else {}["no such key"]

    monkeypatch.setattr(tables, "recent_lines", failing)
    done = run("status", "--url", surface.url)
    assert done.exit_code == 1
    assert "the rest cannot be shown, for a defect of specwatch: KeyError" in done.stdout
    assert "speedup 2.00" in done.stdout


def test_hostile_names_neither_command_nor_fill_the_terminal(run: Run, surface: Surface) -> None:
    surface.status = daemon(
        target(
            HOSTILE,
            models={HOSTILE: Mode.ON},
            engine_version=HOSTILE,
            recent=(minute(START, model_name=HOSTILE, temperature=HOSTILE),),
            failure=Failure(ScrapeReason.MALFORMED, HOSTILE, NOW),
        ),
        daemon=HOSTILE,
        stuck=(HOSTILE,),
        store=StoreStatus(HOSTILE, error=HOSTILE),
    )
    text = run("status", "--url", surface.url).stdout
    assert r"[red]x[/red] \x1b[31m" in text
    assert all(line.isprintable() for line in text.splitlines())
    assert max(map(len, text.splitlines())) < 500


def test_styles_are_for_terminals(
    surface: Surface, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a pipe only with FORCE_COLOR, and never with NO_COLOR."""
    failure = Failure(ScrapeReason.REFUSED, "word " * 50, NOW)
    surface.status = daemon(target(recent=BUCKETS, decision=decided(), failure=failure))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")

    def piped(**more: str) -> str:
        with monkeypatch.context() as patch:
            for name, value in more.items():
                patch.setenv(name, value)
            return run("status", "--url", surface.url).stdout

    text = piped()
    assert "\x1b" not in text
    assert "word " * 49 in text
    coloured = on_a_terminal(monkeypatch, "status", "--url", surface.url)
    for start in (
        b"\x1b[31mfailing",
        b"\x1b[31mbreach: too-slow",
        b"\x1b[31m>1 ",
        b"\x1b[2mpending: soon",
    ):
        assert start in coloured
    assert "\x1b[31mbreach: too-slow" in piped(FORCE_COLOR="1")
    assert "\x1b" not in piped(FORCE_COLOR="1", NO_COLOR="1")
    monkeypatch.setenv("NO_COLOR", "1")
    plain = on_a_terminal(monkeypatch, "status", "--url", surface.url)
    assert b"\x1b" not in plain
    assert b"word" in plain
    assert max(map(len, plain.decode().splitlines())) <= 80


@pytest.mark.parametrize("width", [50, 60, 79, 120])
def test_on_a_narrow_terminal_columns_go_below_with_the_first_one(
    surface: Surface, run: Run, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    recent = tuple(of_tap(START, label, drafts=60, of=90, server=100) for label in ("0", ">1"))
    failure = Failure(ScrapeReason.REFUSED, "word " * 50, NOW)
    surface.status = daemon(target(recent=(minute(START), *recent), failure=failure))
    # A pipe that is to be written to as a terminal is.
    for name, value in {"COLUMNS": str(width), "NO_COLOR": "1", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    text = run("status", "--url", surface.url).stdout
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert all(line[:1].strip() or not line.strip() or line.startswith("  ") for line in lines)
    headers = [
        number for number, line in enumerate(lines) if line.startswith(("temp ", "segment "))
    ]
    assert (len(headers) > 2) is (width <= 60)
    shown = " ".join(lines[number] for number in headers)
    for header in ("acceptance", "TPOT p50", "share", "P10/50/90", "TTFT p99", "TPOT p99"):
        assert header in shown, "no column is lost"
    rows = [line for line in lines[headers[-1] + 1 :] if line.strip()]
    assert [row.split()[0] for row in rows[:2]] == ["0", ">1"]
    assert "..." not in text


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, *words: str) -> bytes:
    """What a command writes on a terminal."""
    ours, theirs = pty.openpty()
    parts: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # once the other end is closed
            while part := os.read(ours, 65536):
                parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with open(theirs, "w") as screen, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        group.main(list(words), standalone_mode=False)
    reader.join()
    os.close(ours)
    return b"".join(parts)


@pytest.fixture
def config(surface: Surface, tmp_path: Path) -> Path:
    """A configuration of the daemon."""
    file = tmp_path / "specwatch.yml"
    file.write_text(f"listen: 0.0.0.0:{surface.server.port}\ntargets: [{{url: 'http://h'}}]\n")
    return file


def test_the_configuration_says_where_the_daemon_is(
    run: Run, surface: Surface, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("status", "--config", config).exit_code == 0
    assert run("status", "--config", config, "--url", "http://127.0.0.1:1").exit_code == 1
    monkeypatch.setattr(status, "_DEFAULT_URL", surface.url)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # which is not asked
    assert run("status").exit_code == 0
    options.DEFAULT_FILE.parent.mkdir()
    options.DEFAULT_FILE.write_text("listen: 127.0.0.1:1\ntargets: [{url: 'http://h'}]\n")
    assert run("status").exit_code == 1


def test_a_daemon_that_asks_for_its_token_gets_it_from_the_configuration_or_the_option(
    run: Run, surface: Surface, config: Path, tmp_path: Path
) -> None:
    surface.token = lambda: "t0ken"
    token = tmp_path / "token"
    token.write_text("t0ken\n")
    refused = run("status", "--config", config)
    assert refused.exit_code == 1
    assert "--bearer-token-file" in refused.stderr
    assert run("status", "--config", config, "--bearer-token-file", token).exit_code == 0
    config.write_text(f"listen_token_file: token\n{config.read_text()}")
    assert run("status", "--config", config).exit_code == 0
    elsewhere = run("status", "--config", config, "--url", surface.url)
    assert elsewhere.exit_code == 1, "another place is not given the configured token"
    assert run("status", "--url", surface.url, "--bearer-token-file", token).exit_code == 0
    absent = run("status", "--url", surface.url, "--bearer-token-file", tmp_path / "absent")
    assert absent.exit_code == 2
    assert "cannot read" in absent.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("listen: 127.0.0.1:0\ntargets: [{url: 'http://h'}]\n", "port 0"),
        ("targets: [{url: 'http://h', bearer_token_file: absent}]\n", "cannot read"),
    ],
)
def test_a_configuration_that_does_not_tell_where_suggests_to_say_it(
    run: Run, tmp_path: Path, text: str, words: str
) -> None:
    """A secret may be the service's own to read, which is no reason to refuse a look."""
    file = tmp_path / "specwatch.yml"
    file.write_text(text)
    done = run("status", "--config", file)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "--url" in done.stderr


def test_without_a_daemon_it_exits_with_1_and_a_bad_url_with_2(run: Run) -> None:
    done = run("status", "--url", "http://127.0.0.1:1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("no daemon answers: nothing listens at http://127.0.0.1:1")
    assert "vLLM" not in done.stderr
    done = run("status", "--url", "localhost:9469")
    assert done.exit_code == 2
    assert 'write "http://localhost:9469"' in done.stderr


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (404, b"Not Found"),
        (403, b"who?"),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b"\xff"),
        (200, b'{"targets": []}'),
        (200, b""),
    ],
)
def test_another_server_exits_with_1(
    run: Run, web: Callable[..., str], code: int, body: bytes
) -> None:
    url = web("/api/v1/targets", lambda _: Response(body, code))
    done = run("status", "--url", url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"what answers at {url} is not a daemon of specwatch" in done.stderr
