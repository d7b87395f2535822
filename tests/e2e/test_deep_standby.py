"""Deep standby in a real vLLM: the drafter is skipped, and what follows from that when it ends."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.e2e.conftest import StartSwitched
from tests.e2e.processes import specwatch
from tests.e2e.waiting import eventually
from tests.lab.traffic import WORDS, Outcome, Request, send
from tests.lab.vllm_server import VllmServer


def ask(server: VllmServer, number: int, tokens: int, words: int = 350) -> Outcome:
    """An answer to words that no other number has; 350 are several blocks of the prefix cache."""
    prompt = " ".join(random.Random(number).choices(WORDS, k=words))
    outcome = send(server.url, Request(prompt=prompt, max_tokens=tokens, stream=True))
    assert outcome.ok, outcome.error
    return outcome


def running(server: VllmServer) -> float:
    lines = server.metrics().splitlines()
    name = "vllm:num_requests_running{"
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def acceptance(outcome: Outcome) -> float:
    assert outcome.record is not None
    assert outcome.record.drafts
    return outcome.record.accepted_tokens / outcome.record.draft_tokens


def test_the_drafter_is_skipped_and_drafts_are_accepted_again(
    start_switched: StartSwitched,
) -> None:
    started = start_switched("draft-good")
    directory = started.directory

    def state() -> dict[str, Any]:
        answer: dict[str, Any] = json.loads((directory / "state.json").read_bytes())
        return answer

    with started as (server, _):
        assert state()["deep_unavailable"] == ""

        def order(*flags: str) -> dict[str, Any]:
            done = specwatch(
                "switch", "--url", server.url, "--directory", str(directory), "--json", *flags
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return state()

        def switched(**expected: Any) -> dict[str, Any]:
            return eventually(
                lambda: state() if expected.items() <= state().items() else None,
                what=str(expected), within=20, every=0.02,
            )  # fmt: skip

        before = [ask(server, number, 100) for number in (1, 2)]
        assert min(map(acceptance, before)) > 0.5

        assert order("--k", "0", "--deep")["deep"] is True
        assert "specwatch_switch_deep 1.0\n" in server.metrics()
        skipped = [ask(server, number, 100) for number in (1, 2, 3)]
        assert [one.record and one.record.drafts for one in skipped] == [0, 0, 0]

        with ThreadPoolExecutor() as clients:
            through = [clients.submit(ask, server, number, 900, 30) for number in (4, 5)]
            eventually(lambda: running(server) == 2, what="both run", within=20, every=0.05)
            # The command watches for seconds, in which they may finish.
            ended = clients.submit(order, "--launch")
            assert switched(deep=False)["stale_requests"] == 2
            again = [ask(server, number, 100) for number in (1, 2, 3)]
            assert [one.text for one in again[:2]] == [one.text for one in before]
            assert [one.text for one in again] == [one.text for one in skipped]
            # The third prompt was cached while the drafter did not run.
            assert min(map(acceptance, again)) > 0.5
            assert ended.result()["deep"] is False
        assert max(acceptance(one.result()) for one in through) < 0.1
        switched(stale_requests=0)
        same = [ask(server, number, 900, 30) for number in (4, 5)]
        assert [one.text for one in same] == [one.result().text for one in through]
        assert min(map(acceptance, same)) > 0.5
