"""The HTTP API of the simulated vLLM: an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import itertools
import time
import uuid
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.applications import Starlette
from starlette.datastructures import State
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specwatch.errors import ConfigError
from specwatch.lab.simulator.clients import SimulatedClients
from specwatch.lab.simulator.completion_request import (
    LARGEST_BODY,
    CompletionRequest,
    Refused,
    count_tokens,
    read_completion_request,
)
from specwatch.lab.simulator.responses import (
    DONE,
    SimulatedResponse,
    error_body,
    event,
    metrics_of,
    token_text,
    usage,
)
from specwatch.lab.simulator.runtime import SimulatedRuntime
from specwatch.lab.simulator.sequence import SimulatedSequence
from specwatch.lab.simulator.settings import ADAPTIVE, SCHEDULE
from specwatch.lab.simulator.workload import SimulatedRequest

_NOT_COUNTED = frozenset({"/metrics", "/health", "/version"})


def application(runtime: SimulatedRuntime) -> Starlette:
    """The whole application, middleware included; ConfigError when one cannot be loaded."""
    api = SimulatedApi(runtime)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(runtime.pump())]
        if runtime.settings.middleware:
            tasks.append(asyncio.create_task(SimulatedClients(app, runtime).run()))
        try:
            with runtime.following_orders():
                yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    # vLLM adds in order, so that the last one named is the outermost.
    outermost = [
        _load_middleware(path, runtime.registry) for path in reversed(runtime.settings.middleware)
    ]
    inner = [Middleware(_ApiKey, runtime=runtime), Middleware(_Instrumented, runtime=runtime)]
    app = Starlette(
        routes=api.routes,
        middleware=[*outermost, *inner],
        exception_handlers={Refused: _refuse},
        lifespan=lifespan,
    )
    _fill_state(app.state, runtime)
    return app


def _fill_state(state: State, runtime: SimulatedRuntime) -> None:
    """Set in ``state`` what middleware can use of what this version of vLLM has there."""
    settings, speculation = runtime.settings, runtime.engine.speculation
    level = settings.record if speculation is not None else "none"
    config = None
    if speculation is not None:
        config = {
            "method": speculation.method,
            "model": speculation.model,
            "num_speculative_tokens": speculation.k,
            SCHEDULE: list(speculation.schedule) or None,
            ADAPTIVE: speculation.adaptive,
        }
    sampling: dict[str, Any] = {}
    if settings.default_temperature != 1.0:  # vLLM keeps what differs from its own defaults
        sampling["temperature"] = settings.default_temperature
    serving: dict[str, Any] = {"default_sampling_params": sampling}
    if settings.engine_version != "0.8.5":
        serving["enable_force_include_usage"] = settings.force_usage
    state.openai_serving_chat = SimpleNamespace(**serving)
    state.openai_serving_completion = SimpleNamespace(**serving)
    state.openai_serving_models = SimpleNamespace(
        base_model_paths=[
            SimpleNamespace(name=name, model_path=settings.model) for name in settings.served
        ]
    )
    observability = {"per_request_spec_decode_metrics": level} if settings.has_records else {}
    state.vllm_config = SimpleNamespace(
        speculative_config=None if config is None else SimpleNamespace(**config),
        observability_config=SimpleNamespace(**observability),
    )
    if settings.has_records:
        state.args = SimpleNamespace(
            model=settings.model,
            served_model_name=list(settings.served_model_names) or None,
            enable_force_include_usage=settings.force_usage,
            enable_per_request_metrics=settings.timings,
            per_request_spec_decode_metrics=level,
            speculative_config=config,
        )


def _load_middleware(path: str, registry: CollectorRegistry) -> Middleware:
    module, _, name = path.rpartition(".")
    try:
        value: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"--middleware {path}: cannot be imported ({error}); expected a dotted path to an ASGI"
            " middleware class or a coroutine function"
        ) from error
    if isinstance(value, type):
        factory: Any = value
        # A real vLLM is a separate process, in whose registry nothing is registered yet.
        takes_registry = "registry" in inspect.signature(value).parameters
        return Middleware(factory, **({"registry": registry} if takes_registry else {}))
    if inspect.iscoroutinefunction(value):
        return Middleware(BaseHTTPMiddleware, dispatch=value)
    raise ConfigError(
        f"--middleware {path}: found {type(value).__name__}, expected a class or a coroutine"
        " function"
    )


class SimulatedApi:
    """Handlers of the routes that clients of vLLM use."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self._runtime = runtime
        self._serial = itertools.count()
        self._created = int(time.time())
        self.routes = [
            Route("/metrics", self._metrics),
            Route("/health", self._health),
            Route("/version", self._version),
            Route("/v1/models", self._models),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            *(
                Route(path, functools.partial(self._complete, chat=chat), methods=["POST"])
                for path, chat in (("/v1/completions", False), ("/v1/chat/completions", True))
            ),
        ]

    async def _metrics(self, _: Request) -> Response:
        return Response(self._runtime.metrics(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _health(self, _: Request) -> Response:
        return Response()

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": self._runtime.settings.engine_version})

    async def _models(self, _: Request) -> Response:
        settings = self._runtime.settings
        data: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": settings.model,
                "parent": None,
                "max_model_len": settings.max_model_len,
                "permission": [],
            }
            for name in settings.served
        ]
        return JSONResponse({"object": "list", "data": data})

    async def _tokenize(self, request: Request) -> Response:
        settings = self._runtime.settings
        count = count_tokens(await _body(request), settings)
        return JSONResponse(
            {
                "count": count,
                "max_model_len": settings.max_model_len,
                "tokens": list(range(count)),
                "token_strs": None,
            }
        )

    async def _complete(self, request: Request, chat: bool) -> Response:
        completion = read_completion_request(await _body(request), chat, self._runtime.settings)
        answer = SimulatedResponse(
            chat=chat,
            id=("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex[:16],
            created=int(time.time()),
            model=completion.model,
            signed=self._runtime.settings.has_records,
        )
        if completion.stream:
            return StreamingResponse(
                self._stream(completion, answer), media_type="text/event-stream"
            )
        response = asyncio.create_task(self._response(completion, answer))
        disconnect = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait((response, disconnect), return_when=asyncio.FIRST_COMPLETED)
            return JSONResponse(response.result()) if response.done() else Response(status_code=499)
        finally:
            for task in (response, disconnect):
                task.cancel()
            await asyncio.gather(response, disconnect, return_exceptions=True)

    def _requests(self, completion: CompletionRequest) -> list[SimulatedRequest]:
        settings, workload = self._runtime.settings, self._runtime.engine.workload
        return [
            SimulatedRequest(
                prompt_tokens=prompt.tokens,
                max_tokens=completion.max_tokens or settings.max_model_len - prompt.tokens,
                temperature=completion.temperature,
                stop_after=None
                if completion.ignore_eos
                else max(completion.min_tokens, workload.output_length()),
            )
            for prompt in completion.prompts
        ]

    def _keys(self, completion: CompletionRequest) -> list[str]:
        """Seeds for the text of each choice: greedy answers repeat, others do not."""
        serial = next(self._serial) if completion.temperature else ""
        return [
            f"{prompt.digest}/{serial}/{index if completion.n > 1 else ''}"
            for prompt in completion.prompts
            for index in range(completion.n)
        ]

    def _metrics_of(
        self, completion: CompletionRequest, sequences: list[SimulatedSequence]
    ) -> dict[str, Any] | None:
        """Metrics of a request, which vLLM has only where there is one answer."""
        settings = self._runtime.settings
        if len(sequences) != 1 or completion.beams:
            return None
        return metrics_of(sequences[0], record=settings.record != "none", times=settings.timings)

    async def _response(
        self, completion: CompletionRequest, answer: SimulatedResponse
    ) -> dict[str, Any]:
        sequences: list[SimulatedSequence] = []
        async for _ in self._runtime.generate(self._requests(completion), completion.n, sequences):
            pass
        texts = [
            "".join(token_text(key, position) for position in range(sequence.generation_tokens))
            for key, sequence in zip(self._keys(completion), sequences, strict=True)
        ]
        counts = usage(
            sum(prompt.tokens for prompt in completion.prompts),
            sum(sequence.generation_tokens for sequence in sequences),
        )
        reasons = [sequence.finished_reason for sequence in sequences]
        return answer.response(texts, reasons, counts, self._metrics_of(completion, sequences))

    async def _stream(
        self, completion: CompletionRequest, answer: SimulatedResponse
    ) -> AsyncIterator[bytes]:
        keys = self._keys(completion)
        sent = [0] * len(keys)
        if answer.chat:
            counts = usage(completion.prompts[0].tokens, 0) if completion.continuous_usage else None
            for index in range(len(keys)):
                yield event(answer.opening(index, counts))
        sequences: list[SimulatedSequence] = []
        updates = self._runtime.generate(self._requests(completion), completion.n, sequences)
        async with contextlib.aclosing(updates):
            async for tokens in updates:
                first, index = sent[tokens.index], tokens.index
                sent[index] += tokens.new
                text = "".join(token_text(keys[index], i) for i in range(first, sent[index]))
                counts = None
                if completion.continuous_usage:
                    counts = usage(completion.prompts[index // completion.n].tokens, sent[index])
                reason = tokens.finished_reason
                yield event(answer.chunk(index, text, reason, counts, completion.include_usage))
        if completion.include_usage:
            counts = usage(sum(prompt.tokens for prompt in completion.prompts), sum(sent))
            yield event(answer.closing(counts, self._metrics_of(completion, sequences)))
        yield DONE


async def _refuse(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refused)  # noqa: S101
    body = error_body(refusal.status, refusal.kind, str(refusal), refusal.param)
    return JSONResponse(body, refusal.status)


async def _body(request: Request) -> bytes:
    """The body; one that is too large is read to its end, so that the client gets the error."""
    pieces, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= LARGEST_BODY:
            pieces += piece
    if size > LARGEST_BODY:
        raise Refused(
            f"The body has {size} bytes; the simulated vLLM reads {LARGEST_BODY} at most.",
            status=413,
            kind="RequestEntityTooLarge",
        )
    return bytes(pieces)


async def _disconnected(request: Request) -> None:
    """Returns when the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _ApiKey:
    """Guards ``/v1`` with the keys of ``--api-key``, as vLLM does."""

    def __init__(self, app: ASGIApp, runtime: SimulatedRuntime) -> None:
        self._app = app
        self._accepted = {f"Bearer {key}".encode() for key in runtime.settings.api_keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] == "http" and scope["path"].startswith("/v1") and self._accepted
        if guarded and dict(scope["headers"]).get(b"authorization") not in self._accepted:
            refusal = JSONResponse({"error": "Unauthorized"}, 401)
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


class _Instrumented:
    """Counts requests into the ``http_*`` families."""

    def __init__(self, app: ASGIApp, runtime: SimulatedRuntime) -> None:
        self._app = app
        self._runtime = runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _NOT_COUNTED:
            await self._app(scope, receive, send)
            return
        status, sent = 500, 0

        async def watching(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status, sent = message["status"], _content_length(message["headers"])
            await send(message)

        started = time.perf_counter()
        try:
            await self._app(scope, receive, watching)
        finally:
            self._runtime.http.record(
                scope["path"] if status != 404 else "none",
                scope["method"],
                status,
                _content_length(scope["headers"]),
                sent,
                time.perf_counter() - started,
            )


def _content_length(headers: list[tuple[bytes, bytes]]) -> int:
    return next((int(value) for name, value in headers if name.lower() == b"content-length"), 0)
