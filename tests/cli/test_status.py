"""``specwatch status`` against a daemon's own HTTP surface."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from specwatch.cli import tables
from specwatch.cli.tables import coverage_lines
from specwatch.config.rules import Rule
from specwatch.domain.interval import Interval
from specwatch.domain.model import UNCOVERED, Gauges, Histogram, Mode, Source
from specwatch.errors import ScrapeReason
from specwatch.rules.decisions import TargetDecision
from specwatch.rules.summary import CoverageView
from specwatch.rules.verdicts import Verdict
from specwatch.scrape.coverage import Coverage
from specwatch.scrape.taps import Trouble
from specwatch.status import Failure, ProxyStatus, StoreStatus, TapStatus
from specwatch.web.daemon_view import TargetView
from tests.cli.conftest import Run, texts
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
from tests.web.statuses import HOSTILE, NOW, Surface, daemon, minute, of_tap, target

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
                replace(
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
        "temp  acceptance  tok/step  requests  TTFT p50  TTFT p99  TPOT p50  TPOT p99",
        "all        50.0%      3.00         9   ~100 ms   ~500 ms    ~10 ms    ~20 ms",
        "tap: covers 80.0% of drafts",
        "  not covered: 2 requests, more than one completion was asked for, which carry",
        "    no record",
        "  of 25% of requests the acceptance is derived: the tokens of each streamed",
        "    step, as the engine keeps no record",
        "tap: the tap covers little",
        "temp      share drafts accept length P10/50/90 %    TTFT     p99   TPOT    p99",
        "(0.3,0.7]    0%    100  50.0%   3.00           - ~100 ms  > 10 s ~10 ms ~20 ms",
        "unknown    100%   300k  50.0%   3.00    25/69/94 ~100 ms ~500 ms ~10 ms ~20 ms",
    ]


@pytest.mark.parametrize("reason", [*UNCOVERED, HOSTILE, "x" * 500])
def test_what_was_not_covered_fits_eighty_columns(reason: str) -> None:
    seen = CoverageView(
        source="tap", drafts=9, coverage=0.5, records={"derived": 1}, uncovered={reason: 10**9}
    )
    lines = texts(coverage_lines(seen))
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)


def test_without_a_tap_it_says_what_is_missing(run: Run, surface: Surface) -> None:
    surface.status = daemon(target())
    done = run("status", "--url", surface.url)
    assert (
        "tap: none: temperatures unknown (specwatch tap flags shows what to add)"
        in done.stdout.splitlines()
    )
    surface.status = daemon(target(models={"llama": Mode.OFF}))
    assert "tap" not in run("status", "--url", surface.url).stdout


def test_where_it_is_not_known_whether_a_server_speculates_it_says_what_to_do(
    run: Run, surface: Surface
) -> None:
    surface.status = daemon(target(models={"llama": Mode.UNKNOWN}))
    lines = run("status", "--url", surface.url).stdout.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("speculation unknown")]
    assert lines[at + 1].startswith("It is not known whether the server speculates. Start")


def test_a_proxy_that_fails_is_said_and_is_no_failure_of_the_target(
    run: Run, surface: Surface
) -> None:
    proxy = ProxyStatus("http://127.0.0.1:8001", FAILURE)
    surface.status = daemon(target(tap=TapStatus(Source.PROXY, proxy=proxy)))
    done = run("status", "--url", surface.url)
    assert done.exit_code == 0
    assert "proxy failing for 3 min: nothing listens" in done.stdout


def test_as_json_it_is_what_the_daemon_says(run: Run, surface: Surface) -> None:
    done = run("status", "--url", surface.url, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == surface.get("/api/v1/targets").json


def test_damaged_rows_are_said_with_the_last_of_them(run: Run, surface: Surface) -> None:
    """They are left out: the daemon works."""
    store = StoreStatus("x", damaged=2, last_damaged="minutes (start=60): no \x1b[1mmsgpack")
    surface.status = daemon(store=store)
    done = run("status", "--url", surface.url)
    assert done.exit_code == 0
    assert (
        "2 stored rows damaged and left out, the last minutes (start=60): no"
        " \\x1b[1mmsgpack; `specwatch db check` lists them"
    ) in " ".join(done.stdout.split())


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"targets": (target(), target("down", failure=FAILURE))}, "failing for 3 min: nothing"),
        ({"stuck": ("chat",)}, "stuck, no scrape ended for three intervals: chat"),
        (
            {
                "store": StoreStatus(
                    "x", queued=7, dropped=2, error="it is locked", behind_since=NOW - 60
                )
            },
            "2 given up, 7 waiting, failing for 60 s: it is locked",
        ),
    ],
)
def test_something_that_fails_is_a_no_and_is_said(
    run: Run, surface: Surface, changes: dict[str, object], words: str, as_json: bool
) -> None:
    surface.status = daemon(**changes)
    done = run("status", "--url", surface.url, *(["--json"] if as_json else []))
    assert done.exit_code == 1
    assert as_json or words in done.stdout


def test_a_target_that_cannot_be_shown_hides_no_other_and_is_a_no(
    run: Run, surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(decided().models["llama"], assessment=None)
    models = TargetDecision(models={"llama": broken})
    surface.status = daemon(target("bad", decision=models), target("good", decision=decided()))
    done = run("status", "--url", surface.url)
    assert done.exit_code == 1
    assert "model llama cannot be shown, for a defect of specwatch" in done.stdout
    assert "speedup 2.00" in done.stdout

    surface.status = daemon(target("bad"), target("good", decision=decided()))
    lines = tables.recent_lines

    def failing(target: TargetView, now: float) -> Any:
        return lines(target, now) if target.name == "good" else {}["no such key"]

    monkeypatch.setattr(tables, "recent_lines", failing)
    done = run("status", "--url", surface.url)
    assert done.exit_code == 1
    assert "the rest cannot be shown, for a defect of specwatch: KeyError" in done.stdout
    assert "speedup 2.00" in done.stdout


def test_targets_that_fail_come_first(run: Run, surface: Surface) -> None:
    surface.status = daemon(target("a"), target("z", failure=FAILURE), target("b"))
    said = run("status", "--url", surface.url).stdout
    assert said.index("\nz  http") < said.index("\na  http") < said.index("\nb  http")
    assert "watching 3 targets, 1 failing" in said


BUCKETS = (
    minute(START),
    of_tap(START, "0", drafts=50, of=100, server=100),
    of_tap(START, ">1", drafts=50, of=100, server=100),
)


def test_a_measured_speedup_is_shown_with_its_interval_and_the_line_at_this_load(
    run: Run, surface: Surface
) -> None:
    surface.status = daemon(target(recent=BUCKETS, decision=decided()))
    said = run("status", "--url", surface.url).stdout
    assert "speedup 2.00 (1.95 to 2.05) per token, measured against a baseline 12 min old\n" in said
    assert "break-even at 3-4 running: 12.5% acceptance, now 50.0% (a step costs 1.50x)\n" in said
    assert "best k: 2, predicted speedup per token 2.40; with 4 now 2.00\n" in said
    header, greedy, creative = said.splitlines()[-3:]
    assert header.split()[4] == "faster"
    assert greedy.split()[:5] == ["0", "50%", "50", "50.0%", "2.67x"]
    assert creative.split()[:5] == [">1", "50%", "50", "50.0%", "0.80x"]
    assert max(map(len, said.splitlines())) <= 80


def test_without_a_baseline_the_speedup_is_an_assumption_and_the_remedy_is_named(
    run: Run, surface: Surface
) -> None:
    surface.status = daemon(target(recent=BUCKETS, decision=decided((), measured=False)))
    said = run("status", "--url", surface.url).stdout
    assert "speedup about 2.1, assumed: no baseline; run specwatch calibrate\n" in said
    assert "break-even at about 10.0% acceptance, by the assumed draft cost, now 50.0%\n" in said
    assert "measured" not in said
    assert "faster" not in said


def test_a_speedup_that_is_not_of_now_is_not_told_as_if_it_were(run: Run, surface: Surface) -> None:
    surface.status = daemon(
        target("never", decision=unlike()), target("before", decision=unlike(since=NOW - 900))
    )
    said = " ".join(run("status", "--url", surface.url).stdout.split())
    assert (
        f"the speedup is not known yet: {UNLIKE}; run specwatch calibrate break-even not known"
        in said
    )
    assert (
        f"the speedup is not known now: {UNLIKE}; run specwatch calibrate; until 2023-11-14 21:59"
        " UTC it was 2.00 (1.95 to 2.05) per token, measured"
    ) in said
    assert "assumed" not in said


def test_rules_in_breach_are_told_with_their_numbers_and_since_when(
    run: Run, surface: Surface
) -> None:
    surface.status = daemon(target(decision=decided()))
    done = run("status", "--url", surface.url)
    assert done.exit_code == 1
    breach = r"breach: too-slow: speedup_ratio 2 \(1\.75 to 2\.27\), below 2\.5, for 3 min"
    assert re.search(breach, done.stdout)
    assert "pending: soon: acceptance_ratio 0.5, below 0.9, for " in done.stdout
    assert "rules: 1 in breach, 1 pass, 2 without data" in done.stdout
    assert "objective first-token: the error budget spent 50 times over" in done.stdout
    assert (
        "goodput: 0.83 of 1.67 requests/s met all objectives in the 18 min watched of the\n"
        in done.stdout
    )


@pytest.mark.parametrize(
    ("rules", "exit_code"),
    [((MINOR,), 0), ((PENDING, PASSING, SILENT), 0), ((BREACHED,), 1), ((MINOR, BREACHED), 1)],
)
def test_only_a_breach_that_somebody_has_to_know_of_is_a_no(
    run: Run, surface: Surface, rules: tuple[Rule, ...], exit_code: int
) -> None:
    surface.status = daemon(target(decision=decided(rules)))
    assert run("status", "--url", surface.url).exit_code == exit_code


def test_a_breach_of_a_model_that_is_no_longer_served_is_shown(run: Run, surface: Surface) -> None:
    surface.status = daemon(target(decision=decided(model_name="gone")))
    said = run("status", "--url", surface.url).stdout
    assert said.index("\ngone\n") < said.index("breach: too-slow")


@pytest.mark.parametrize(
    ("seen", "words"), [(Verdict.PASS, "about to clear"), (Verdict.NO_DATA, "no data now")]
)
def test_a_breach_says_what_is_seen_of_it_now(
    run: Run, surface: Surface, seen: Verdict, words: str
) -> None:
    found = decided((BREACHED,))
    (finding,) = found.findings
    changed = replace(found, findings=(replace(finding, seen=seen, temperature="(0,0.3]"),))
    surface.status = daemon(target(decision=changed))
    said = run("status", "--url", surface.url).stdout
    assert "breach: too-slow at (0,0.3]: speedup_ratio" in said
    assert words in said


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (0.9, "break-even at 3-4 running: any acceptance, now 50.0% (a step costs 0.90x)"),
        (6.0, "break-even at 3-4 running: out of reach, now 50.0%"),
    ],
)
def test_a_line_beyond_what_acceptance_can_be_is_told_in_words(
    run: Run, surface: Surface, cost: float, words: str
) -> None:
    found = decided(())
    model = found.models["llama"]
    (bin_,) = model.assessment.bins
    line = Interval((cost - 1) / 4, 0.0, 1.0, 12)
    moved = replace(bin_, step_cost=Interval(cost, cost, cost, 12), acceptance=line)
    changed = replace(model, assessment=replace(model.assessment, bins=(moved,)))
    surface.status = daemon(target(decision=replace(found, models={"llama": changed})))
    assert words in run("status", "--url", surface.url).stdout


def test_the_line_is_that_of_the_present_load_where_it_is_known(run: Run, surface: Surface) -> None:
    found = decided(())
    model = found.models["llama"]
    (bin_,) = model.assessment.bins
    busy = replace(bin_, load_bin=7, share=0.9, step_cost=Interval(9.0, 9.0, 9.0, 12))
    both = replace(
        model, assessment=replace(model.assessment, bins=(replace(bin_, share=0.1), busy))
    )
    surface.status = daemon(target(decision=replace(found, models={"llama": both})))
    assert "break-even at 3-4 running" in run("status", "--url", surface.url).stdout
    elsewhere = replace(minute(START), gauges=Gauges(60.0, 60.0, 600.0))
    surface.status = daemon(
        target(recent=(elsewhere,), decision=replace(found, models={"llama": both}))
    )
    assert "break-even at 65+ running" in run("status", "--url", surface.url).stdout


def test_what_loses_and_what_is_in_breach_is_red(surface: Surface, specwatch: list[str]) -> None:
    surface.status = daemon(target(recent=BUCKETS, decision=decided()))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    said = _on_a_terminal([*specwatch, "status", "--url", surface.url], environment)
    assert b"\x1b[31mbreach: too-slow" in said
    assert b"\x1b[31m>1 " in said
    assert b"\x1b[2mpending: soon" in said


def test_a_daemon_that_has_just_started_says_so(run: Run, surface: Surface) -> None:
    surface.status = daemon(
        target("new", models={}, recent=(), last_scrape=None, last_success=None),
        target("read", recent=(), models={"llama": Mode.ON, "": Mode.OFF}),
    )
    done = run("status", "--url", surface.url)
    assert done.exit_code == 0
    assert "not scraped yet" in done.stdout
    assert "speculation on; no whole minute seen since the last start or switch" in done.stdout


def test_hostile_names_neither_command_nor_fill_the_terminal(run: Run, surface: Surface) -> None:
    failure = Failure(ScrapeReason.MALFORMED, HOSTILE, NOW)
    surface.status = daemon(
        target(
            HOSTILE,
            models={HOSTILE: Mode.ON},
            engine_version=HOSTILE,
            recent=(minute(START, model_name=HOSTILE, temperature=HOSTILE),),
            failure=failure,
        ),
        daemon=HOSTILE,
        stuck=(HOSTILE,),
        store=StoreStatus(HOSTILE, error=HOSTILE),
    )
    said = run("status", "--url", surface.url).stdout
    assert r"[red]x[/red] \x1b[31m" in said
    assert said.isprintable() is False  # for its line feeds
    assert all(line.isprintable() for line in said.splitlines())
    assert max(map(len, said.splitlines())) < 500


def test_colours_are_for_terminals(surface: Surface, specwatch: list[str]) -> None:
    """And not even there under NO_COLOR; in a pipe nothing is wrapped either."""
    surface.status = daemon(target(failure=Failure(ScrapeReason.REFUSED, "word " * 50, NOW)))
    command = [*specwatch, "status", "--url", surface.url]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    piped = subprocess.run(command, capture_output=True, timeout=60, env=environment).stdout
    assert b"\x1b" not in piped
    assert b"word " * 49 in piped
    assert b"\x1b[31m" in _on_a_terminal(command, environment)
    plain = _on_a_terminal(command, {**environment, "NO_COLOR": "1"})
    assert b"\x1b[31m" not in plain
    assert b"word" in plain


@pytest.mark.parametrize("width", [50, 64, 79])
def test_on_a_narrow_terminal_tables_leave_out_their_last_columns(
    surface: Surface, specwatch: list[str], width: int
) -> None:
    """In place of wrapping, which put them below the first."""
    recent = tuple(of_tap(START, label, drafts=60, of=90, server=100) for label in ("0", ">1"))
    surface.status = daemon(target(recent=(minute(START), *recent)))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(width), "NO_COLOR": "1"}
    command = [*specwatch, "status", "--url", surface.url]
    said = _on_a_terminal(command, environment).decode()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines()
    headers = [line for line in lines if line.startswith("temp ")]
    assert [line.split()[1] for line in headers] == ["acceptance", "share"]
    for line in headers:
        row = lines[lines.index(line) + 1]
        assert row.startswith(("all ", "0 ")), "nothing of the header stands between"
        assert len(row.rstrip()) <= width
    assert "p99" not in {line.strip() for line in lines}


def _on_a_terminal(command: list[str], environment: dict[str, str]) -> bytes:
    """What a command writes on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=theirs, env=environment) as process:
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:  # the terminal's other end is closed
            pass
        process.wait(60)
    os.close(ours)
    return b"".join(parts)


def test_the_configuration_says_where_the_daemon_is(
    run: Run, surface: Surface, tmp_path: Path
) -> None:
    file = tmp_path / "specwatch.yml"
    listen = f"0.0.0.0:{surface.server.port}"
    file.write_text(f"listen: {listen}\ntargets: [{{url: 'http://127.0.0.1:8000'}}]\n")
    assert run("status", "--config", file).exit_code == 0
    assert run("status", "--config", file, "--url", "http://127.0.0.1:1").exit_code == 1


def test_a_daemon_that_asks_for_its_token_gets_it_from_the_configuration_or_the_option(
    run: Run, surface: Surface, tmp_path: Path
) -> None:
    surface.token = lambda: "t0ken"
    file, token = tmp_path / "specwatch.yml", tmp_path / "token"
    token.write_text("t0ken\n")
    listen = (
        f"listen: 127.0.0.1:{surface.server.port}\ntargets: [{{url: 'http://127.0.0.1:8000'}}]\n"
    )
    file.write_text(listen)
    refused = run("status", "--config", file)
    assert refused.exit_code == 1
    assert "--bearer-token-file" in refused.stderr
    assert run("status", "--config", file, "--bearer-token-file", token).exit_code == 0
    file.write_text(f"listen_token_file: token\n{listen}")
    assert run("status", "--config", file).exit_code == 0
    elsewhere = run("status", "--config", file, "--url", surface.url)
    assert elsewhere.exit_code == 1, "another place is not given the configured token"
    assert run("status", "--url", surface.url, "--bearer-token-file", token).exit_code == 0
    absent = run("status", "--url", surface.url, "--bearer-token-file", tmp_path / "absent")
    assert absent.exit_code == 2
    assert "cannot read" in absent.stderr


def test_without_any_it_asks_the_usual_address(
    run: Run, surface: Surface, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specwatch.cli import options, status

    monkeypatch.setattr(status, "_DEFAULT_URL", surface.url)
    assert run("status").exit_code == 0
    options.DEFAULT_FILE.parent.mkdir()
    options.DEFAULT_FILE.write_text(
        "listen: 127.0.0.1:1\ntargets: [{url: 'http://127.0.0.1:8000'}]\n"
    )
    assert run("status").exit_code == 1


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


def test_nobody_there_is_a_no(run: Run) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        done = run("status", "--url", url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"no daemon answers: nothing listens at {url}")
    assert "vLLM" not in done.stderr


def test_a_bad_url_is_a_usage_error(run: Run) -> None:
    done = run("status", "--url", "localhost:9469")
    assert done.exit_code == 2
    assert 'write "http://localhost:9469"' in done.stderr


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"Not Found"), (403, b"who?"), (200, b"<html>"), (200, b"[]"), (200, b"\xff"),
        (200, b'{"targets": []}'), (200, b""),
    ],
)  # fmt: skip
def test_something_else_that_answers_is_a_no(
    run: Run, web: Callable[..., str], status: int, body: bytes
) -> None:
    url = web("/api/v1/targets", lambda _: Response(body, status))
    done = run("status", "--url", url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"what answers at {url} is not a daemon of specwatch" in done.stderr


def test_a_proxy_of_the_environment_is_not_asked(
    run: Run, surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon listens on this machine; what it says is nobody else's business."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert run("status", "--url", surface.url).exit_code == 0
