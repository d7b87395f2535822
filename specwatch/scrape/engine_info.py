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
    drafting: bool | None = None
    """Whether llama.cpp's server can draft; None of vLLM, whose page tells."""


def ask(fetch: Callable[[str], bytes]) -> EngineInfo:
    """Read ``/version`` (vLLM) or ``/props`` and ``/slots`` (llama.cpp), and ``/v1/models``.

    ``fetch`` gets a path and returns a body or raises ScrapeError; a path that the server does not
    have, or guards with a key, is not an error. Raises ScrapeError when the server does not answer.
    """
    version, drafting = _text(_json(fetch, "/version"), "version"), None
    if version is None:
        props = _json(fetch, "/props")
        version = _text(props, "build_info")
        # To ask for its slots would wake a server that sleeps.
        llama = isinstance(props, dict) and "total_slots" in props
        if llama and not props.get("is_sleeping"):
            drafting = _drafting(_json(fetch, "/slots"))
    listed = _json(fetch, "/v1/models")
    models = listed.get("data") if isinstance(listed, dict) else None
    listed_models = models[:_MOST_MODELS] if isinstance(models, list) else []
    named = [(name, model) for model in listed_models if (name := _text(model, "id"))]
    longest = {name: model.get("max_model_len") for name, model in named}
    return EngineInfo(
        version,
        tuple(name for name, _ in named),
        {name: n for name, n in longest.items() if type(n) is int and n > 0},
        drafting,
    )


def _drafting(slots: Any) -> bool | None:
    """Whether any slot speculates; None where not all of them say."""
    listed = slots if isinstance(slots, list) else []
    said = [slot.get("speculative") if isinstance(slot, dict) else None for slot in listed]
    if any(one is True for one in said):
        return True
    return False if said and all(one is False for one in said) else None


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
