"""An engine's version and the models that it serves."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from specwatch.domain.draft_lengths import DraftLengths
from specwatch.engines.base import Identity, text_of
from specwatch.engines.sample_names import ENGINES
from specwatch.errors import PageError, ScrapeError, ScrapeReason

_MOST_MODELS = 64


class EngineInfo(NamedTuple):
    """What an engine says about itself; None and empty if it does not say."""

    version: str | None
    models: tuple[str, ...]
    longest: Mapping[str, int] = MappingProxyType({})
    """Largest number of tokens of each model, prompt and output (vLLM's max_model_len)."""
    drafting: bool | None = None
    """As in :class:`specwatch.engines.base.Identity`, like the following."""
    draft_lengths: DraftLengths | None = None
    prefills: bool = False


def ask(fetch: Callable[[str], bytes]) -> EngineInfo:
    """Read the engine's version page and ``/v1/models``.

    ``fetch`` gets a path and returns a body or raises ScrapeError. A path that is missing or needs
    an API key is not an error. Raises ScrapeError if the server does not answer.
    """
    read = partial(_json, fetch)
    identities = (engine.identify(read) for engine in ENGINES)
    identity = next((candidate for candidate in identities if candidate != Identity()), Identity())
    document = read("/v1/models")
    models = document.get("data") if isinstance(document, dict) else None
    listed = models[:_MOST_MODELS] if isinstance(models, list) else []
    named = [(name, model) for model in listed if (name := text_of(model, "id"))]
    longest = {name: model.get("max_model_len") for name, model in named}
    return EngineInfo(
        identity.version,
        tuple(name for name, _ in named),
        {name: n for name, n in longest.items() if type(n) is int and n > 0},
        identity.drafting,
        identity.draft_lengths,
        identity.prefills,
    )


async def ask_in_loop(fetch: Callable[[str], Awaitable[bytes]]) -> EngineInfo:
    """As :func:`ask`, where ``fetch`` is a coroutine."""
    answers: dict[str, bytes | ScrapeError] = {}

    def known(path: str) -> bytes:
        answer = answers[path]
        if isinstance(answer, ScrapeError):
            raise answer
        return answer

    while True:
        try:
            return ask(known)
        except KeyError as unknown:  # ask again with the answer to this one, too
            (path,) = unknown.args
        try:
            answers[path] = await fetch(path)
        except ScrapeError as error:
            answers[path] = error


def _json(fetch: Callable[[str], bytes], path: str) -> Any:
    try:
        return json.loads(fetch(path))
    except ScrapeError as error:
        if isinstance(error, PageError) or error.reason is ScrapeReason.HTTP_STATUS:
            return None
        raise
    except (ValueError, RecursionError):  # no JSON, or nested beyond reason
        return None
