"""A server under load, other than vLLM: what its engine wants in each request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from specwatch.config.target import Target
from specwatch.domain.model import Mode
from specwatch.errors import ConfigError
from specwatch.lab.loadtest.client import CHAT
from specwatch.lab.loadtest.requests import Answer, Ask
from specwatch.lab.loadtest.server import Server
from specwatch.runtime.http_server import HttpServer
from tests import simulated_load
from tests.loadtest.test_client import DETAILS, SGLANG, USAGE, piece, streamed
from tests.pages import faithful


class SimulatedSGLang:
    """A server of SGLang's pages, which has a record in responses to requests that want one."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        pages = {
            "/metrics": PlainTextResponse(faithful("sglang-0.5.9-eagle").decode()),
            "/server_info": JSONResponse({"version": "0.5.23", "speculative_algorithm": "EAGLE"}),
            "/v1/models": JSONResponse({"data": [{"id": "org/m", "owned_by": "sglang"}]}),
        }
        routes = [Route(path, lambda _, page=page: page) for path, page in pages.items()]
        routes.append(Route("/v1/chat/completions", self.complete, methods=["POST"]))
        self.http = HttpServer(Starlette(routes=routes), "127.0.0.1", 0, name="web")

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        wanted = body.get("return_spec_tokens_details")
        record = [{"choices": [], "sglext": {"spec_tokens_details": DETAILS}}] if wanted else []
        return streamed(piece("a"), *record, USAGE)(request)


@pytest.fixture
def sglang() -> Iterator[SimulatedSGLang]:
    server = SimulatedSGLang()
    server.http.start()
    yield server
    assert server.http.stop()


def test_sglang_is_asked_for_the_record_of_each_request(sglang: SimulatedSGLang) -> None:
    server = Server(Target(url=sglang.http.url), model=None, endpoint=CHAT, where="--on")

    async def one() -> Answer:
        async with server:
            return await server.try_out(Ask("hello", 5))

    answer = asyncio.run(one())
    assert [body["return_spec_tokens_details"] for body in sglang.asked] == [True]
    assert answer.acceptance == SGLANG
    assert (server.engine.model_name, server.engine.mode) == ("org/m", Mode.ON)
    assert server.engine.environment.engine_version == "0.5.23"


def test_a_server_with_a_key_is_asked_with_it(tmp_path: Path) -> None:
    """Its answers and its page are read over HTTP."""
    key = tmp_path / "key"
    key.write_text("secret\n")

    async def asked(server: Server) -> tuple[Answer, float]:
        async with server:
            answer = await server.try_out(Ask("hello", 5))
            samples = await server.read()
        counted = [value for series, value in samples.items() if series.quantity == "drafts"]
        return answer, sum(counted)

    def server(**more: Any) -> Server:
        target = Target(url=guarded.url, **more)
        return Server(target, model="tiny", endpoint=CHAT, where="--on")

    with simulated_load.server(speculates=True, api_keys=("secret",)) as guarded:
        answer, drafts = asyncio.run(asked(server(bearer_token_file=key)))
        with pytest.raises(ConfigError, match="give its key with --bearer-token-file"):
            asyncio.run(asked(server()))
    assert (answer.tokens, answer.finish_reason) == (5, "length")
    assert answer.acceptance is not None
    assert answer.acceptance.drafts == drafts > 0
