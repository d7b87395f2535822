"""``specwatch bench`` on real servers: with a good draft, with a bad one, without.

The servers share two cores, so that nothing is sure but orders; what was counted is exact.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from itertools import zip_longest
from pathlib import Path

import pytest
from msgspec.structs import replace

from specwatch.cli.load import server_at
from specwatch.domain.baseline import Origin
from specwatch.domain.experiments import Bench, Comparison, read
from specwatch.lab.loadtest.bench import Load
from specwatch.lab.loadtest.bench_run import BenchPlan, BenchRun
from specwatch.lab.loadtest.prompts import PROMPTS
from specwatch.lab.loadtest.requests import Prompt
from specwatch.lab.loadtest.server import Server
from tests.e2e.clients import request_seconds
from tests.e2e.processes import CHECKOUT, experiments_of, measurements_of, specwatch
from tests.lab.vllm_server import VllmServer

TOKENS = 16
SHORT = ("--warm-up", "500ms", "--max-tokens", str(TOKENS), "--temperature", "0")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('bench')}/specwatch.db"


def duration(*servers: VllmServer) -> str:
    """Of a level: on any machine long enough for some turns of three requests each."""
    slowest = request_seconds((server.url for server in servers), [0.0], TOKENS)
    return f"{max(2400, round(18_000 * slowest))}ms"


def compared(on: VllmServer, off: VllmServer, *more: str) -> tuple[Comparison, int]:
    ran = specwatch(
        "bench",
        "--target",
        on.url,
        "--baseline",
        off.url,
        "--json",
        *SHORT,
        *more,
        "--duration",
        duration(on, off),
        timeout=600,
    )
    found = read(ran.stdout, ran.stderr or "standard output")
    assert isinstance(found, Comparison)
    return found, ran.returncode


@pytest.fixture(scope="module")
def good(good_server: VllmServer, plain_server: VllmServer, database: str) -> Comparison:
    found, status = compared(
        good_server, plain_server, "--concurrency", "1,4", "--database", database
    )
    assert status == (1 if found.verdict == "do_not" else 0)
    return found


def test_the_bad_draft_is_not_to_be_shipped_and_the_good_one_is_better(
    good: Comparison, bad_server: VllmServer, plain_server: VllmServer
) -> None:
    bad, status = compared(bad_server, plain_server, "--concurrency", "4", "--dry-run")
    assert (bad.verdict, status) == ("do_not", 1), bad.sentence
    (worse,), better = bad.levels, good.levels[1]
    assert worse.speedup is not None
    assert better.speedup is not None
    # How certain either is depends on what else runs on this machine.
    assert worse.speedup.value < better.speedup.value
    assert (worse.acceptance_rate or 0.0) < 0.1 < 0.5 < (better.acceptance_rate or 0.0)


def test_what_was_measured_is_stored_and_is_a_baseline(good: Comparison, database: str) -> None:
    *benches, kept = experiments_of(database)
    off, on = good.benches
    assert sorted(benches, key=lambda each: each == on) == [off, on]
    assert kept == replace(good, benches=())
    assert isinstance(off, Bench)
    assert isinstance(on, Bench)
    for each in (*off.levels, *on.levels):
        assert each.errors == {}
        assert each.alone is True
        assert each.tokens == TOKENS * each.requests > 0
    found = measurements_of(database)
    assert [each.load_bin for each in found] == [0, 2]
    assert {each.origin for each in found} == {Origin.CALIBRATION}
    assert {each.key.target for each in found} == {good.on.target}


@pytest.mark.parametrize("load", [Load(concurrency=4), Load(rate=8.0)], ids=str)
def test_what_clients_got_is_what_the_server_counted(good_server: VllmServer, load: Load) -> None:
    """Drafts, tokens accepted at each position, tokens and requests: to the last one."""
    plan = BenchPlan((load,), tuple(map(Prompt, PROMPTS)), (0.0, 1.2), 3.0, 0.5, TOKENS, 0)
    server = Server(
        server_at(good_server.url, "here", None), model=None, endpoint="chat", where="here"
    )
    run = BenchRun(plan, [server], lambda _: None, lambda *_: None)
    asyncio.run(run.run())
    assert run.broken_off is None
    (measured,) = run.measured
    (level,), (stage,) = measured.levels, measured.stages
    records = [answer.acceptance for answer in stage.answers if answer.acceptance is not None]
    assert len(records) == len(stage.answers) == sum(stage.total.requests.values())
    assert sum(answer.tokens or 0 for answer in stage.answers) == stage.total.generation_tokens
    found = level.acceptance
    assert found is not None
    assert found.drafts == sum(record.drafts for record in records)
    assert found.draft_tokens == sum(record.draft_tokens for record in records)
    assert found.accepted_tokens == sum(record.accepted_tokens for record in records)
    lengths = [record.accepted_lengths or () for record in records]
    assert found.histogram == tuple(map(sum, zip_longest(*lengths, fillvalue=0)))
    if load.rate is not None:
        return  # The looks at its page are not where the time begins and ends that counts.
    samples = [part.sample for part in stage.slices]
    counted = sum(sample.tally.generation_tokens or 0 for sample in samples)
    seconds = sum(sample.gauges.sampled_seconds for sample in samples)
    assert level.throughput == pytest.approx(counted / seconds, rel=0.2)


def test_a_server_that_dies_leaves_what_was_measured(
    bad_server: VllmServer, tmp_path: Path
) -> None:
    """In the middle of the second level; the next test that uses the server starts it again."""
    output, database = tmp_path / "result.json", f"sqlite:///{tmp_path}/specwatch.db"
    command = [
        sys.executable,
        "-m",
        "specwatch",
        "bench",
        "--target",
        bad_server.url,
        "--concurrency",
        "1,2",
        *SHORT,
        "--duration",
        "4s",
        "-o",
        str(output),
        "--database",
        database,
    ]
    with subprocess.Popen(
        command,
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("concurrency 1 with")
        time.sleep(2.5)
        bad_server.kill()
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "broken off" in errors
    bench = read(output.read_text(), "file")
    assert isinstance(bench, Bench)
    assert experiments_of(database) == [bench]
    assert not bench.complete
    assert bench.levels[0].requests > 0
    assert [level.concurrency for level in bench.levels] in ([1], [1, 2])
