"""A simulated llama.cpp server: what llama-server answers, as far as acceptance depends on it.

Read in llama.cpp's tools/server: server-task.cpp at commits 17f5f8a and 00efb3e, which agree,
server-context.cpp at 001d906, which is newer, and server-http.cpp at 00dd081; not run. Responses of
build b6097 and pages of build b10902 that others published agree, where not said otherwise:

* ``timings`` has ``cache_n``, ``prompt_n``, ``prompt_ms``, ``prompt_per_token_ms``,
  ``prompt_per_second`` and the same four of ``predicted``; ``draft_n`` and ``draft_n_accepted``
  only when at least one token was drafted. A server without a drafter has neither.
* Whole responses of all three APIs carry it as the last member, after ``usage`` and ``id``.
* A stream of chat: in the *last chunk before* ``[DONE]``. Without ``include_usage`` that is the one
  with ``finish_reason`` (which has no ``usage``; b6097 put ``usage`` there too); with it,
  that is the chunk with ``choices: []`` and ``usage``, and the one before it has the reason.
* A stream of /v1/completions: the chunk with ``finish_reason`` always has ``usage`` and
  ``timings``, whatever ``include_usage`` says; no chunk with empty ``choices`` follows.
* A stream of /completion: the event with ``stop: true``; no ``[DONE]``. Its other events have
  ``stop: false``. ``response_fields`` may take any member out, ``timings`` too.
* ``timings_per_token``: every chunk has ``timings`` so far, totals of the request: the last counts.
* /v1/messages and /v1/responses carry no ``timings`` at all.
* Several completions (``n``): a whole response has the ``timings`` of the *first* one only; in a
  stream each completion ends with its own, and with ``include_usage`` there is a chunk for each.
* The first chunk of a chat says ``role`` with ``content: null``. A stream may have comments (``:``)
  as sign of life when it is silent for long. Its head is sent when the prompt begins.
* Each token is its own event, also of those that one step of speculation yields: the number
  of events says nothing about steps.
* A step drafts at most as many tokens as are left less one, so ``length`` cuts no step short; the
  end of sequence or a stop word does: then ``draft_n_accepted`` counts tokens that ``predicted_n``
  does not. Steps without a draft (nothing found by n-grams, too improbable) are not distinguished,
  so ``predicted_n - 1 - draft_n_accepted`` is the number of steps, of which some drafted nothing.
* Models with recurrent layers, at commit 9789512: steps that were accepted in part are
  counted in neither number, so that the ratio is always 1.
* A temperature of 0 or less is greedy. The default stands in ``/props`` at
  ``default_generation_settings.params.temperature`` (older builds, from memory: without
  ``params``). What /props says about speculation is not to be trusted.
* /props and /metrics want the API key, /health and /v1/models do not. /metrics answers 501 unless
  asked for with ``--metrics``; b10902 has ``llamacpp:spec_decode_num_drafts_total``,
  ``_draft_tokens_total``, ``_accepted_tokens_total`` (0 without a drafter too) and, from the first
  request that drafted, ``_accepted_tokens_per_pos_total{position}``. No page names the model.
* /slots, a list: ``speculative`` of each says whether there is a drafter (b11434, run). 501 with
  ``--no-slots``; it wakes a server that sleeps.
* A connection is closed after a stream, and its head announces that it is kept (b11434, run; not
  simulated). After SIGTERM a stream under way neither moves nor ends.
* /v1/models: one entry, ``owned_by: llamacpp``. While the model loads, everything is 503.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from specwatch.runtime.http_server import HttpServer

MODEL = "tiny-llama.gguf"
FINGERPRINT = "b10902-simulated"
_PUBLIC = ("/health", "/v1/models")


@dataclass(frozen=True, slots=True)
class Generation:
    """What the server itself has counted of one completion."""

    temperature: float
    predicted: int
    drafted: int
    accepted: int
    finish: str


class SimulatedLlama:
    """Serves on a free loopback port; ``generations`` is the truth that a tap must find."""

    def __init__(
        self,
        *,
        draft_tokens: int = 4,
        temperature: float = 0.8,
        api_key: str | None = None,
        older_props: bool = False,
        slots: bool = True,
    ) -> None:
        self.draft_tokens = draft_tokens
        self.temperature = temperature
        self.api_key = api_key
        self.older_props = older_props
        self.slots = slots
        self.loading = False
        self.generations: list[Generation] = []
        self.paths: list[str] = []
        self._random = random.Random(7)
        self._lock = threading.Lock()
        self._http = HttpServer(_application(self), "127.0.0.1", 0, name="simulated-llama")

    @property
    def url(self) -> str:
        """Base URL."""
        return self._http.url

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._http.port

    def __enter__(self) -> Self:
        self._http.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        assert self._http.stop(10)

    def generate(self, asked: dict[str, Any]) -> Work:
        """The work of one completion: acceptance falls with the temperature."""
        temperature = asked.get("temperature")
        temperature = self.temperature if temperature is None else float(temperature)
        wanted = asked.get("max_tokens") or asked.get("n_predict") or 16
        with self._lock:
            chance = random.Random(self._random.random())
        return Work(self, temperature, int(wanted), chance, cut=bool(asked.get("stop")))


class Work:
    """One completion, token by token, and its timings so far."""

    def __init__(
        self,
        server: SimulatedLlama,
        temperature: float,
        wanted: int,
        chance: random.Random,
        *,
        cut: bool,
    ) -> None:
        self._server = server
        self._temperature = temperature
        self._wanted = wanted
        self._chance = chance
        self._cut = cut
        self.predicted = self.drafted = self.accepted = 0

    def tokens(self) -> Iterator[str]:
        """Each token; with a stop word, the last step is cut short."""
        end = max(1, self._wanted - 2) if self._cut else self._wanted
        rate = 0.9 - 0.5 * min(1.0, self._temperature)
        yield self._token()
        while self.predicted < end:
            draft = min(self._server.draft_tokens, self._wanted - self.predicted - 1)
            kept = 0
            while kept < draft and self._chance.random() < rate:
                kept += 1
            self.drafted += draft
            self.accepted += kept
            for _ in range(min(kept + 1, end - self.predicted)):
                yield self._token()
        done = Generation(
            self._temperature,
            self.predicted,
            self.drafted,
            self.accepted,
            "stop" if self._cut else "length",
        )
        with self._server._lock:
            self._server.generations.append(done)

    @property
    def stopped(self) -> str:
        """``stop_type`` of /completion."""
        return "word" if self._cut else "limit"

    @property
    def reason(self) -> str:
        """``finish_reason`` of the OpenAI APIs."""
        return "stop" if self._cut else "length"

    @property
    def usage(self) -> dict[str, int]:
        """``usage`` so far."""
        return {
            "completion_tokens": self.predicted,
            "prompt_tokens": 5,
            "total_tokens": self.predicted + 5,
        }

    @property
    def timings(self) -> dict[str, float]:
        """``timings`` so far."""
        times: dict[str, float] = {"cache_n": 0}
        for name, tokens, per_token in (("prompt", 5, 2.0), ("predicted", self.predicted, 8.0)):
            times |= {
                f"{name}_n": tokens,
                f"{name}_ms": tokens * per_token,
                f"{name}_per_token_ms": per_token,
                f"{name}_per_second": 1000 / per_token,
            }
        if self.drafted:
            times |= {"draft_n": self.drafted, "draft_n_accepted": self.accepted}
        return times

    def _token(self) -> str:
        self.predicted += 1
        return f" t{self.predicted}"


def _application(server: SimulatedLlama) -> Starlette:
    async def answer(request: Request) -> Response:
        path = request.url.path
        server.paths.append(path)
        if server.loading:
            return _error(503, "Loading model", "unavailable_error")
        given = request.headers.get("authorization", "")
        if server.api_key and path not in _PUBLIC and given != f"Bearer {server.api_key}":
            return _error(401, "Invalid API Key", "authentication_error")
        if request.method != "POST":
            return _page(server, path)
        try:
            asked = json.loads(await request.body())
        except ValueError:
            return _error(400, "not JSON", "invalid_request_error")
        key = "messages" if "chat" in path else "prompt"
        if key not in asked:
            return _error(400, f"key '{key}' not found", "invalid_request_error")
        speak = _SPOKEN[path]
        works = [server.generate(asked) for _ in range(int(asked.get("n") or 1))]
        if asked.get("stream"):
            events = (event for i, work in enumerate(works) for event in speak(asked, work, i))
            return StreamingResponse(
                _sse(events, done=path != "/completion"), media_type="text/event-stream"
            )
        return JSONResponse(_whole(path, works))

    paths = [*_SPOKEN, "/props", "/slots", "/metrics", "/v1/models", "/health"]
    return Starlette(routes=[Route(path, answer, methods=["GET", "POST"]) for path in paths])


def _error(status: int, message: str, kind: str) -> Response:
    return JSONResponse({"error": {"code": status, "message": message, "type": kind}}, status)


def _page(server: SimulatedLlama, path: str) -> Response:
    if path == "/health":
        return JSONResponse({"status": "ok"})
    if path == "/v1/models":
        entry = {"id": MODEL, "object": "model", "owned_by": "llamacpp", "meta": {"n_ctx": 4096}}
        return JSONResponse({"models": [{"name": MODEL}], "object": "list", "data": [entry]})
    if path == "/props":
        params: dict[str, Any] = {"seed": -1, "temperature": server.temperature, "top_k": 40}
        settings = params if server.older_props else {"params": params, "n_ctx": 4096}
        return JSONResponse({"default_generation_settings": settings, "total_slots": 1})
    if path == "/slots":
        if not server.slots:
            return _error(501, "This server does not support slots endpoint", "not_supported_error")
        return JSONResponse([{"id": 0, "speculative": bool(server.draft_tokens)}])
    family = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    lines = ["# TYPE llamacpp:requests_processing gauge", "llamacpp:requests_processing 0"]
    if server.draft_tokens:
        lines += [f"# TYPE {family} counter"]
        lines += [f'{family}{{position="{position}"}} 0' for position in range(server.draft_tokens)]
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


async def _sse(events: Iterator[dict[str, Any]], *, done: bool) -> Any:
    for event in events:
        yield f"data: {json.dumps(event, separators=(',', ':'))}\n\n"
    if done:
        yield "data: [DONE]\n\n"


def _chat(asked: dict[str, Any], work: Work, index: int) -> Iterator[dict[str, Any]]:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"finish_reason": reason, "index": index, "delta": delta}
        return {"choices": [choice], **_base("chat.completion.chunk")}

    yield chunk({"role": "assistant", "content": None})
    for token in work.tokens():
        part = chunk({"content": token})
        if asked.get("timings_per_token"):
            part["timings"] = work.timings
        yield part
    ends = [chunk({}, work.reason)]
    if (asked.get("stream_options") or {}).get("include_usage"):
        ends.append({"choices": [], **_base("chat.completion.chunk"), "usage": work.usage})
    ends[-1]["timings"] = work.timings
    yield from ends


def _completions(asked: dict[str, Any], work: Work, index: int) -> Iterator[dict[str, Any]]:
    def chunk(text: str, reason: str | None = None) -> dict[str, Any]:
        choice = {"text": text, "index": index, "logprobs": None, "finish_reason": reason}
        return {"choices": [choice], **_base("text_completion")}

    for token in work.tokens():
        part = chunk(token)
        if asked.get("timings_per_token"):
            part["timings"] = work.timings
        yield part
    yield {**chunk("", work.reason), "usage": work.usage, "timings": work.timings}


def _completion(asked: dict[str, Any], work: Work, index: int) -> Iterator[dict[str, Any]]:
    for token in work.tokens():
        part = {
            "index": index,
            "content": token,
            "tokens": [work.predicted],
            "stop": False,
            "id_slot": 0,
            "tokens_predicted": work.predicted,
            "tokens_evaluated": 5,
        }
        if asked.get("timings_per_token"):
            part["timings"] = work.timings
        yield part
    yield _final(work, "", index)


_SPOKEN = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completions,
    "/completion": _completion,
}


def _whole(path: str, works: list[Work]) -> Any:
    texts = ["".join(work.tokens()) for work in works]
    if path == "/completion":
        finals = [_final(work, text, 0) for work, text in zip(works, texts, strict=True)]
        return finals[0] if len(finals) == 1 else finals
    chat = path == "/v1/chat/completions"
    contents = [
        {"message": {"role": "assistant", "content": t}} if chat else {"text": t} for t in texts
    ]
    choices = [
        {"finish_reason": work.reason, "index": index, **content}
        for index, (work, content) in enumerate(zip(works, contents, strict=True))
    ]
    base = _base("chat.completion" if chat else "text_completion")
    first = works[0]
    return {"choices": choices, **base, "usage": first.usage, "timings": first.timings}


def _final(work: Work, text: str, index: int) -> dict[str, Any]:
    return {
        "index": index,
        "content": text,
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": MODEL,
        "tokens_predicted": work.predicted,
        "tokens_evaluated": 5,
        "generation_settings": {"temperature": work._temperature},
        "prompt": "hello",
        "has_new_line": False,
        "truncated": False,
        "stop_type": work.stopped,
        "stopping_word": "",
        "tokens_cached": work.predicted + 4,
        "timings": work.timings,
    }


def _base(kind: str) -> dict[str, Any]:
    return {
        "created": 1_790_000_000,
        "id": "chatcmpl-simulated",
        "model": MODEL,
        "system_fingerprint": FINGERPRINT,
        "object": kind,
    }
