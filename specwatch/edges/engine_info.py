"""Asking an engine who it is: its version and the models that it serves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from specwatch.errors import PageError, ScrapeError, ScrapeReason

_MOST_MODELS = 64
_LONGEST_TEXT = 200


class EngineInfo(NamedTuple):
    """What an engine says of itself; None and empty where it does not."""

    version: str | None
    models: tuple[str, ...]
    longest: Mapping[str, int] = MappingProxyType({})
    """Tokens that each model has room for, prompt and output together (vLLM's max_model_len)."""


def ask(fetch: Callable[[str], bytes]) -> EngineInfo:
    """Read ``/version`` (vLLM) or ``/props`` (llama.cpp), and ``/v1/models``.

    ``fetch`` gets a path and returns a body or raises ScrapeError; a path that the server does not
    have, or guards with a key, is not an error. Raises ScrapeError when the server does not answer.
    """
    version = _text(_json(fetch, "/version"), "version")
    if version is None:
        version = _text(_json(fetch, "/props"), "build_info")
    listed = _json(fetch, "/v1/models")
    models = listed.get("data") if isinstance(listed, dict) else None
    listed_models = models[:_MOST_MODELS] if isinstance(models, list) else []
    named = [(name, model) for model in listed_models if (name := _text(model, "id"))]
    longest = {name: model.get("max_model_len") for name, model in named}
    return EngineInfo(
        version,
        tuple(name for name, _ in named),
        {name: n for name, n in longest.items() if type(n) is int and n > 0},
    )


def _json(fetch: Callable[[str], bytes], path: str) -> Any:
    try:
        return json.loads(fetch(path))
    except ScrapeError as error:
        if isinstance(error, PageError) or error.reason is ScrapeReason.HTTP_STATUS:
            return None
        raise
    except (ValueError, RecursionError):  # no JSON, or nested beyond reason
        return None


def _text(document: Any, key: str) -> str | None:
    value = document.get(key) if isinstance(document, dict) else None
    if not isinstance(value, str):
        return None
    # JSON can spell halves of characters, which no UTF-8 can.
    return value[:_LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")
