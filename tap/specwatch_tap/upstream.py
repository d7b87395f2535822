"""The facts of a server behind the proxy, read from its pages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from specwatch_tap.server_facts import Endpoint, Scope, ServerFacts

EVERY = 30.0
"""Seconds between two reads of an upstream that answers."""

AGAIN = 1.0
"""Seconds until the next read of one that does not; they double up to half the above."""

_PATIENCE = 5.0
_FOR_NOW = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Temporary statuses; any other means that there is no such page, or none that we may read."""
_LARGEST_PAGE = 16 << 20
_VLLM, _LLAMACPP = "vllm", "llamacpp"
_METRICS_PATH = "/metrics"
"""Of an engine that is not known yet."""
_ESCAPED = re.compile(r"\\(.)")
_log = logging.getLogger("specwatch_tap")
_Page = TypeVar("_Page")


class ListedModel(msgspec.Struct, gc=False):
    """An entry of /v1/models; vLLM gives a LoRA adapter its model as ``parent``.

    ``owned_by`` is the name of the engine, once others are removed.
    """

    id: str
    parent: str | None = None
    owned_by: str | None = None


class ModelList(msgspec.Struct, gc=False):
    """/v1/models."""

    data: list[ListedModel]


class _Settings(msgspec.Struct, gc=False):
    temperature: float | None = None


class _Defaults(msgspec.Struct, gc=False):
    params: _Settings | None = None
    temperature: float | None = None


class Props(msgspec.Struct, gc=False):
    """/props of llama.cpp, which had the temperature itself among the settings once."""

    default_generation_settings: _Defaults

    @property
    def temperature(self) -> float | None:
        """What a request without a temperature gets."""
        settings = self.default_generation_settings
        return settings.params.temperature if settings.params else settings.temperature


@dataclass(frozen=True, slots=True)
class _Metrics:
    """What /metrics says of the engine; ``model_name`` is empty if it names none."""

    engine: str | None
    model_name: str
    draft_tokens: int | None


@dataclass(frozen=True, slots=True)
class _Pages:
    """What the pages say, None for one that is missing; ``missing`` names those that are so only
    temporarily."""

    models: ModelList | None = None
    metrics: _Metrics | None = None
    props: Props | None = None
    missing: frozenset[str] = frozenset()

    @property
    def base(self) -> ListedModel | None:
        """The model itself, not an adapter."""
        entries = self.models.data if self.models is not None else []
        return next((entry for entry in entries if entry.parent is None), None)

    @property
    def engine(self) -> str | None:
        """The name of the engine, None for one that is not known."""
        if self.base is not None and self.base.owned_by is not None:
            return self.base.owned_by
        if self.metrics is not None and self.metrics.engine is not None:
            return self.metrics.engine
        return _LLAMACPP if self.props is not None else None

    def is_of_another_server(self, before: _Pages) -> bool:
        """Whether any page names another engine or model than before."""
        bases = (self.base, before.base)
        names = (self.metrics, before.metrics)
        return (
            _differ(self.engine, before.engine)
            or _differ(*(base.id if base is not None else None for base in bases))
            or _differ(*(page.model_name if page is not None else None for page in names))
        )

    def with_missing_from(self, before: _Pages) -> _Pages:
        """With what a page said before while it is missing."""
        return replace(self, **{name: getattr(before, name) for name in self.missing})


def _differ(now: str | None, before: str | None) -> bool:
    return bool(now and before) and now != before


class Upstream:
    """Reads the facts in the background and keeps the last ones known, page by page.

    Sends no API key: a server that wants one for /v1/models names its model on /metrics.
    Whether responses carry records cannot be read; the tap takes them if they come.
    """

    def __init__(
        self,
        url: str,
        default_temperature: float | None = None,
        *,
        metrics_paths: Mapping[str, str],
    ) -> None:
        """``url`` is the base; ``default_temperature`` holds in place of what the server says.

        ``metrics_paths`` has the engines that are known by name, and where each has its metrics.
        """
        self._url = url
        self._metrics_paths = metrics_paths
        self._metrics_reader = _MetricsReader(metrics_paths)
        self._default_temperature = default_temperature
        # Requests are not changed before the engine is known: llama.cpp's timings would move.
        self._facts = ServerFacts("", default_temperature, asks_nothing=True)
        self._pages = _Pages()
        self._wake = asyncio.Event()
        self._reached: bool | None = None

    def facts(self, scope: Scope, endpoint: Endpoint) -> ServerFacts:
        """The facts as last read; the model's name is empty before the first read."""
        return self._facts

    @property
    def last_facts(self) -> ServerFacts:
        """The facts as last read."""
        return self._facts

    def look_again(self) -> None:
        """Read the pages at once: a request could not reach it."""
        self._wake.set()

    @contextlib.asynccontextmanager
    async def learning(self, session: aiohttp.ClientSession) -> AsyncIterator[None]:
        """Keep reading while the context lasts."""
        task = asyncio.create_task(self._keep_learning(session))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def learn(self, session: aiohttp.ClientSession) -> bool:
        """Read the pages once; returns whether no page was temporarily missing.

        What a missing page said before stays known, unless the others show that another server is
        there now.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                pages = await self._look(session)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if self._reached is not False:
                _log.warning("cannot reach %s: %s", shown(self._url), described(error))
            self._reached = False
            return False
        if pages.models is None and pages.metrics is None and pages.props is None:
            return False
        name = self._facts.model_name
        if pages.is_of_another_server(self._pages):
            name = ""
        else:
            pages = pages.with_missing_from(self._pages)
        facts = self._facts_from(pages, name)
        if facts != self._facts or not self._reached:
            _log.info("upstream %s: %s", shown(self._url), facts)
        self._pages, self._facts, self._reached = pages, facts, True
        return not pages.missing

    async def _keep_learning(self, session: aiohttp.ClientSession) -> None:
        pause = EVERY
        while True:
            self._wake.clear()
            try:
                learned = await self.learn(session)
            except Exception:
                _log.exception("cannot make out the pages of %s", shown(self._url))
                learned = False
            longer = AGAIN if pause == EVERY else min(2 * pause, EVERY / 2)
            pause = EVERY if learned else longer
            await asyncio.sleep(AGAIN)  # no more often, whatever the requests see
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause - AGAIN):
                    await self._wake.wait()
                    pause = EVERY

    async def _look(self, session: aiohttp.ClientSession) -> _Pages:
        """What its pages say now; a server that loads its model has none of them."""
        missing: set[str] = set()
        models = _read(await self._page(session, "models", "/v1/models", missing), ModelList)
        for entry in models.data if models is not None else ():
            if entry.owned_by not in self._metrics_paths:
                entry.owned_by = None
        path = self._metrics_paths.get(_Pages(models).engine or "", _METRICS_PATH)
        page = await self._page(session, "metrics", path, missing)
        pages = _Pages(models, self._metrics_reader.read(page) if page else None)
        if pages.engine in (None, _LLAMACPP):
            props = _read(await self._page(session, "props", "/props", missing), Props)
            pages = replace(pages, props=props)
        return replace(pages, missing=frozenset(missing))

    async def _page(
        self, session: aiohttp.ClientSession, name: str, path: str, missing: set[str]
    ) -> bytes | None:
        """The contents of a page; None for one that is missing, forbidden or too large.

        ``missing`` gets the name of one that is missing temporarily.
        """
        async with session.get(self._url + path, allow_redirects=False) as response:
            if response.status != 200:
                if response.status in _FOR_NOW:
                    missing.add(name)
                return None
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > _LARGEST_PAGE:
                    response.close()
                    return None
            return bytes(body)

    def _facts_from(self, pages: _Pages, name: str) -> ServerFacts:
        """The facts; ``name`` is the model's name if no page has it."""
        base, metrics, props = pages.base, pages.metrics, pages.props
        temperature = self._default_temperature
        if temperature is None and props is not None:
            temperature = props.temperature
        if base is not None:
            name = base.id
        elif metrics is not None and metrics.model_name:
            name = metrics.model_name
        return ServerFacts(
            name,
            default_temperature=temperature,
            draft_tokens=None if metrics is None else metrics.draft_tokens,
            asks_nothing=pages.engine != _VLLM,
        )


def shown(url: str) -> str:
    """A URL as the log may show it: without credentials and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def described(error: Exception) -> str:
    """The error for the log, without URLs, which may hold secrets.

    The text of a ValueError has the value; only that of a bad certificate (also an OSError) not.
    """
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return "a URL or header field that cannot be sent"
    if isinstance(error, TimeoutError):
        return "no connection in time" if isinstance(error, aiohttp.ClientError) else "too slow"
    text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return " ".join(text.split()) or type(error).__name__


def _read(page: bytes | None, kind: type[_Page]) -> _Page | None:
    if page is None:
        return None
    try:
        return msgspec.json.decode(page, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class _MetricsReader:
    """Reads /metrics of the engines with some names."""

    def __init__(self, engines: Iterable[str]) -> None:
        names = "|".join(engines).encode()
        self._position = re.compile(
            rb"^(" + names + rb"):spec_decode_num_accepted_tokens_per_pos(?:_total)?"
            rb'\{[^}\n]*\bposition="(\d+)"',
            re.MULTILINE,
        )
        self._engine = re.compile(rb"^(" + names + rb"):", re.MULTILINE)
        self._model_name = re.compile(
            rb"^(?:" + names + rb'):\w+\{(?:[^}\n]*,)?model_name="((?:[^"\\\n]|\\.)*)"',
            re.MULTILINE,
        )

    def read(self, page: bytes) -> _Metrics:
        """What a page says of the engine."""
        match = self._engine.search(page)
        engine = None if match is None else match[1].decode()
        # k: as many as there are positions. Only vLLM shows them before it has drafted.
        positions = {position[2] for position in self._position.finditer(page)}
        draft_tokens = len(positions) or (0 if engine == _VLLM else None)
        return _Metrics(engine, self._name(page), draft_tokens)

    def _name(self, page: bytes) -> str:
        match = self._model_name.search(page)
        if match is None:
            return ""
        text = match[1].decode("utf-8", "replace")
        return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], text)
