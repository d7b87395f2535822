"""What the proxy learns of the server behind it, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from specwatch.engines.sample_names import METRICS_PATHS
from specwatch_tap import upstream as module
from specwatch_tap.proxy import client_session
from specwatch_tap.server_facts import Endpoint, ServerFacts
from specwatch_tap.upstream import Upstream
from tests.hostile import HostileServer, Visit, deaf_port
from tests.pages import faithful
from tests.simulated_llama import MODEL, SimulatedLlama

MODELS = {
    "object": "list",
    "data": [
        {"id": "adapter", "object": "model", "owned_by": "vllm", "parent": "org/base"},
        {"id": "org/base", "object": "model", "owned_by": "vllm", "parent": None},
        {"id": "alias", "object": "model", "owned_by": "vllm", "parent": None},
    ],
}
QUIET = 'vllm:num_requests_running{engine="0",model_name="org/\\"base\\""} 0.0\n'
SPECULATING = QUIET + "".join(
    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{engine}",'
    f'model_name="org/base",position="{position}"}} 3.0\n'
    f'vllm:spec_decode_num_accepted_tokens_per_pos_created{{engine="{engine}",'
    f'model_name="org/base",position="9"}} 1.7e9\n'
    for engine in range(2)
    for position in range(3)
)


class Pages:
    """A server that has these pages; a number stands for a status without a page."""

    def __init__(self, **pages: object) -> None:
        self.pages = pages
        self.asked: list[Visit] = []

    def __call__(self, visit: Visit) -> bool:
        self.asked.append(visit)
        page = self.pages.get(visit.path.rpartition("/")[2], 404)
        if isinstance(page, int):
            visit.answer(b"no", f"{page} No")
        else:
            visit.answer((page if isinstance(page, str) else json.dumps(page)).encode())
        return True


def learned(
    url: str, temperature: float | None = None, *, connect_timeout: float = 10.0
) -> tuple[bool, ServerFacts]:
    async def look() -> tuple[bool, ServerFacts]:
        upstream = Upstream(url, temperature, metrics_paths=METRICS_PATHS)
        async with client_session(connect_timeout) as session:
            answered = await upstream.learn(session)
        return answered, upstream.facts({}, Endpoint.CHAT)

    return asyncio.run(look())


VLLM = {
    "that speculates": (
        Pages(models=MODELS, metrics=SPECULATING),
        ServerFacts("org/base", draft_tokens=3),
    ),
    "that does not": (Pages(models=MODELS, metrics=QUIET), ServerFacts("org/base", draft_tokens=0)),
    "without metrics": (Pages(models=MODELS, metrics=404), ServerFacts("org/base")),
    "that wants a key": (
        Pages(models=401, metrics=QUIET),
        ServerFacts('org/"base"', draft_tokens=0),
    ),
    "with a page of models that is none": (
        Pages(models="<html>", metrics=SPECULATING),
        ServerFacts('org/"base"', draft_tokens=3),
    ),
}


def test_the_facts_of_a_vllm() -> None:
    for title, (pages, facts) in VLLM.items():
        with HostileServer(pages) as server:
            assert learned(server.url) == (True, facts), title
        assert not any("/props" in visit.path for visit in pages.asked), "which only llama.cpp has"


def test_the_default_temperature_of_a_vllm_is_what_the_operator_says() -> None:
    with HostileServer(Pages(models=MODELS, metrics=QUIET)) as server:
        _, facts = learned(server.url, 0.6)
    assert facts.default_temperature == 0.6


def test_no_key_is_sent_and_no_compressed_page_asked_for() -> None:
    pages = Pages(models=401, metrics=QUIET)
    with HostileServer(pages) as server:
        learned(server.url)
    assert len(pages.asked) == 2
    for visit in pages.asked:
        assert set(visit.headers) == {"host"}


OTHERS = {
    "SGLang": Pages(
        models={"data": [{"id": "org/base", "owned_by": "sglang"}]}, metrics="sglang:x 1\n"
    ),
    "a gateway": Pages(models={"data": [{"id": "org/base", "owned_by": "openai"}]}),
    "one that names no owner": Pages(models={"data": [{"id": "org/base"}]}, metrics=503),
}


def test_a_server_of_another_kind_is_asked_for_nothing() -> None:
    """It may refuse a request that has what it does not know."""
    for title, pages in OTHERS.items():
        with HostileServer(pages) as server:
            assert learned(server.url)[1] == ServerFacts("org/base", asks_nothing=True), title


def test_the_drafts_of_lmdeploy_have_as_many_tokens_as_positions() -> None:
    models = {"data": [{"id": "org/m", "owned_by": "lmdeploy"}]}
    page = faithful("lmdeploy-0.16-mtp").decode()
    with HostileServer(Pages(models=models, metrics=page)) as server:
        _, facts = learned(server.url)
    assert facts == ServerFacts("org/m", draft_tokens=3, asks_nothing=True)


def test_tensorrt_llm_keeps_the_statistics_that_a_read_of_metrics_would_take() -> None:
    pages = Pages(models={"data": [{"id": "org/m", "owned_by": "tensorrt_llm"}]}, metrics="[]")
    with HostileServer(pages) as server:
        _, facts = learned(server.url)
    assert facts == ServerFacts("org/m", asks_nothing=True)
    assert [visit.path for visit in pages.asked] == ["/v1/models", "/prometheus/metrics"]


@pytest.mark.parametrize("older", [False, True])
def test_the_facts_of_a_llama_server(older: bool) -> None:
    with SimulatedLlama(draft_tokens=5, temperature=0.35, older_props=older) as server:
        answer = learned(server.url)
    facts = ServerFacts(MODEL, default_temperature=0.35, draft_tokens=5, asks_nothing=True)
    assert answer == (True, facts)


def test_a_llama_server_without_drafts_so_far_may_draft_yet() -> None:
    with SimulatedLlama(draft_tokens=0) as server:
        _, facts = learned(server.url)
    assert (facts.draft_tokens, facts.asks_nothing) == (None, True)


def test_a_llama_server_that_wants_a_key_is_recognised_by_its_model() -> None:
    with SimulatedLlama(api_key="sk-secret") as server:
        facts = learned(server.url, 0.5)
    assert facts == (True, ServerFacts(MODEL, default_temperature=0.5, asks_nothing=True))


NOTHING = {
    "closes": lambda visit: None,
    "hangs up in the middle": lambda visit: visit.answer(b"half", length=1000),
    "still loads": Pages(models=503, metrics=503, props=503),
    "redirects": lambda visit: visit.answer(b"", "302 Found", "Location: http://192.0.2.1/\r\n"),
    "never ends": lambda visit: visit.trickle(iter([b"HTTP/1.1 200 OK\r\n\r\n"] + [b"x"] * 99), 1),
}


@pytest.mark.parametrize("behave", NOTHING.values(), ids=NOTHING.keys())
def test_nothing_is_learned_of_a_server_that(
    behave: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    with HostileServer(behave) as server:  # type: ignore[arg-type]
        assert learned(server.url, 0.7) == (False, ServerFacts("", 0.7, asks_nothing=True))


def test_nothing_is_learned_without_a_listener() -> None:
    with deaf_port() as port:
        answer = learned(f"http://127.0.0.1:{port}", connect_timeout=0.02)
    assert answer == (False, ServerFacts("", asks_nothing=True))


LLAMA = {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "llamacpp"}]}
PROPS = {"default_generation_settings": {"params": {"temperature": 0.35}}}
DRAFTED = 'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 1\n'
PLAIN_NAMED = SPECULATING.replace('\\"', "")
A_VLLM: dict[str, object] = {"models": MODELS, "metrics": PLAIN_NAMED}
A_LLAMA: dict[str, object] = {"models": LLAMA, "metrics": DRAFTED, "props": PROPS}
OF_VLLM = ServerFacts("org/base", draft_tokens=3)
OF_LLAMA = ServerFacts(MODEL, default_temperature=0.35, draft_tokens=1, asks_nothing=True)
OTHER_MODEL = {"data": [{"id": "org/other", "owned_by": "vllm"}]}
OTHER_METRICS = 'vllm:num_requests_running{model_name="org/other"} 0.0\n'
SECOND_LOOKS: dict[str, tuple[dict[str, object], dict[str, object], tuple[bool, ServerFacts]]] = {
    "props that pass": (A_LLAMA, {"props": 503}, (False, OF_LLAMA)),
    "llama.cpp's metrics that pass": (A_LLAMA, {"metrics": 503}, (False, OF_LLAMA)),
    "models that pass": (A_LLAMA, {"models": 429}, (False, OF_LLAMA)),
    "vLLM's metrics that pass": (A_VLLM, {"metrics": 502}, (False, OF_VLLM)),
    "vLLM's models that pass": (A_VLLM, {"models": 500}, (False, OF_VLLM)),
    "all that pass": (A_LLAMA, {"models": 503, "metrics": 503, "props": 503}, (False, OF_LLAMA)),
    "metrics that are switched off": (A_VLLM, {"metrics": 404}, (True, ServerFacts("org/base"))),
    "models that want a key now": (A_VLLM, {"models": 401}, (True, OF_VLLM)),
    "speculation that is switched off": (
        A_VLLM,
        {"metrics": QUIET.replace('\\"', "")},
        (True, ServerFacts("org/base", draft_tokens=0)),
    ),
    "another model whose metrics are missing": (
        A_VLLM,
        {"models": OTHER_MODEL, "metrics": 503},
        (False, ServerFacts("org/other")),
    ),
    "another model whose name is on its metrics only": (
        A_VLLM,
        {"models": 503, "metrics": OTHER_METRICS},
        (False, ServerFacts("org/other", draft_tokens=0)),
    ),
    "another engine whose metrics are missing": (
        A_VLLM,
        {**A_LLAMA, "metrics": 503},
        (False, ServerFacts(MODEL, default_temperature=0.35, asks_nothing=True)),
    ),
    "another engine that shows only its metrics": (
        A_LLAMA,
        {"models": 503, "metrics": PLAIN_NAMED, "props": 404},
        (False, OF_VLLM),
    ),
    "another engine that does not name its model": (
        A_LLAMA,
        {"models": 401, "metrics": "vllm:x 1\n", "props": 404},
        (True, ServerFacts("", draft_tokens=0)),
    ),
}


def test_a_second_look_sees() -> None:
    """What a page said holds while it is missing, as long as it is the same server."""

    async def look_thrice(url: str, title: str) -> None:
        before, change, expected = SECOND_LOOKS[title]
        pages.pages = before
        upstream = Upstream(url, metrics_paths=METRICS_PATHS)
        async with client_session(10.0) as session:
            assert await upstream.learn(session), title
            pages.pages = {**before, **change}
            for _ in range(2):
                assert (await upstream.learn(session), upstream.last_facts) == expected, title

    pages = Pages()
    with HostileServer(pages) as server:
        for title in SECOND_LOOKS:
            asyncio.run(look_thrice(server.url, title))


@pytest.mark.parametrize("change", [{"props": 503}, {"metrics": 503}])
def test_a_page_that_is_missing_at_the_first_look_is_looked_for_again_soon(
    change: dict[str, object],
) -> None:
    with HostileServer(Pages(**{**A_LLAMA, **change})) as server:
        assert not learned(server.url)[0]


def test_the_log_shows_no_credentials_of_an_upstream(caplog: pytest.LogCaptureFixture) -> None:
    with deaf_port() as port:
        url = f"http://me:sk-secret@127.0.0.1:{port}/base?key=sk-secret"
        learned(url, connect_timeout=0.02)
    assert f"cannot reach http://127.0.0.1:{port}/base: " in caplog.text
    assert "sk-secret" not in caplog.text


def test_a_page_without_end_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST_PAGE", 100_000)
    pages = Pages(models=MODELS, metrics=SPECULATING + "#" * 200_000)
    with HostileServer(pages) as server:
        assert learned(server.url) == (True, ServerFacts("org/base"))


Step = Callable[[Upstream], Awaitable[None]]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def keeps_learning(url: str, step: Step) -> None:
    async def run() -> None:
        upstream = Upstream(url, metrics_paths=METRICS_PATHS)
        async with client_session(1.0) as session, upstream.learning(session):
            await step(upstream)

    asyncio.run(run())


def test_what_is_known_stays_known_while_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN", 0.01)
    pages = Pages(models=MODELS, metrics=SPECULATING)

    async def step(upstream: Upstream) -> None:
        await until(lambda: upstream.last_facts.draft_tokens == 3)
        pages.pages = {"models": 503, "metrics": 503}
        asked = len(pages.asked)
        upstream.look_again()
        await until(lambda: len(pages.asked) > asked + 3)
        assert upstream.last_facts == ServerFacts("org/base", draft_tokens=3)

    with HostileServer(pages) as server:
        keeps_learning(server.url, step)


def test_a_restarted_upstream_is_noticed_without_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is looked at again and again from the failure on, not once in 30 s."""
    monkeypatch.setattr(module, "AGAIN", 0.01)
    pages = Pages(models=503, metrics=503)

    async def step(upstream: Upstream) -> None:
        await until(lambda: len(pages.asked) > 6)
        pages.pages = {"models": MODELS, "metrics": QUIET}
        await until(lambda: upstream.last_facts.draft_tokens == 0)

    with HostileServer(pages) as server:
        keeps_learning(server.url, step)


@pytest.mark.parametrize(("every", "failed"), [(0.02, False), (30.0, True)])
def test_a_server_that_answers_is_read_now_and_then_and_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, every: float, failed: bool
) -> None:
    monkeypatch.setattr(module, "AGAIN", 0.01)
    monkeypatch.setattr(module, "EVERY", every)
    pages = Pages(models=MODELS, metrics=QUIET)

    async def step(upstream: Upstream) -> None:
        await until(lambda: upstream.last_facts.draft_tokens == 0)
        pages.pages["metrics"] = SPECULATING
        if failed:
            upstream.look_again()
        await until(lambda: upstream.last_facts.draft_tokens == 3)

    with HostileServer(pages) as server:
        keeps_learning(server.url, step)
