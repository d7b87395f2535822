"""What the tap needs to know about the server whose requests it reads.

Of the vLLM in whose process it runs, it reads the facts from the state of its application.
"""

from __future__ import annotations

import enum
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

from specwatch_tap.launch import KV_PRODUCER, draft_lengths

Scope = MutableMapping[str, Any]
"""An ASGI connection scope."""


class Endpoint(enum.StrEnum):
    """An API that generates."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    OTHER = "other"
    """Generates, but the tap cannot read its responses."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server at the time of a request.

    ``model_name`` is the one on the server's own metrics. ``default_temperature`` holds for
    requests without a temperature; None when it is not known. ``draft_tokens`` is the k of the
    server's speculation: 0 while it does not speculate, None when it is not known.
    ``keeps_records`` says that responses carry a record of their acceptance. ``forces_usage`` says
    that streams carry usage whether or not the client asks, ``joins_steps`` that one event may hold
    the tokens of several engine steps. ``asks_nothing`` says that requests are not changed: for a
    server whose streams have the numbers anyway (llama.cpp's ``timings``), or that might refuse.
    ``aliases`` are further names of the same model.
    """

    model_name: str
    default_temperature: float | None = None
    draft_tokens: int | None = None
    keeps_records: bool = False
    forces_usage: bool = False
    joins_steps: bool = False
    asks_nothing: bool = False
    launch: tuple[str, ...] = ()
    """Settings of the launch that the tap shows on its page."""
    aliases: tuple[str, ...] = ()


class FactsSource(Protocol):
    """Gives the facts; called once per request, so it must not wait."""

    def facts(self, scope: Scope, endpoint: Endpoint) -> ServerFacts:
        """The facts now."""


_HANDLERS = {
    Endpoint.CHAT: "openai_serving_chat",
    Endpoint.COMPLETIONS: "openai_serving_completion",
    Endpoint.RESPONSES: "openai_serving_responses",
    Endpoint.MESSAGES: "anthropic_serving_messages",
}
_OWN_DEFAULT = 1.0
"""vLLM's temperature if neither the request nor the model's generation configuration has one."""


class InsideVllm:
    """Reads the facts at the first request to an endpoint: by then the application is complete."""

    def __init__(self) -> None:
        self._known: dict[Endpoint, ServerFacts] = {}

    def facts(self, scope: Scope, endpoint: Endpoint) -> ServerFacts:
        """The facts; all unknown for a server without vLLM's state."""
        facts = self._known.get(endpoint)
        if facts is None:
            state = getattr(scope.get("app"), "state", None)
            facts = self._known[endpoint] = _read(state, endpoint)
        return facts


def _read(state: Any, endpoint: Endpoint) -> ServerFacts:
    handler = getattr(state, _HANDLERS.get(endpoint, ""), None)
    arguments = getattr(state, "args", None)
    config = getattr(state, "vllm_config", None)
    observability = getattr(config, "observability_config", None)
    interval = getattr(getattr(config, "scheduler_config", None), "stream_interval", 1)
    level = getattr(observability, "per_request_spec_decode_metrics", None)
    forces = getattr(
        handler,
        "enable_force_include_usage",
        getattr(arguments, "enable_force_include_usage", False),
    )
    names = _model_names(state)
    return ServerFacts(
        names[0] if names else "",
        default_temperature=_default_temperature(handler),
        draft_tokens=_draft_tokens(config),
        keeps_records=level not in (None, "none"),
        forces_usage=bool(forces),
        joins_steps=isinstance(interval, int) and interval > 1,
        launch=_launch(config),
        aliases=names[1:],
    )


def _launch(config: Any) -> tuple[str, ...]:
    speculation = getattr(config, "speculative_config", None)
    varying = draft_lengths(lambda key: getattr(speculation, key, None))
    settings = (varying,) if varying else ()
    transfer = getattr(config, "kv_transfer_config", None)
    return (*settings, KV_PRODUCER) if getattr(transfer, "kv_role", "") == KV_PRODUCER else settings


def _model_names(state: Any) -> tuple[str, ...]:
    """The served names, of which vLLM puts the first on its own metrics; empty if it has none."""
    models = getattr(state, "openai_serving_models", None)
    return tuple(str(served.name) for served in getattr(models, "base_model_paths", None) or ())


def _default_temperature(handler: Any) -> float | None:
    """Temperature of requests without one; None for versions without it on the handler."""
    if not hasattr(handler, "default_sampling_params"):
        return None
    temperature = (handler.default_sampling_params or {}).get("temperature", _OWN_DEFAULT)
    return float(temperature) if isinstance(temperature, int | float) else None


def _draft_tokens(config: Any) -> int | None:
    if not hasattr(config, "speculative_config"):
        return None
    if config.speculative_config is None:
        return 0
    draft_tokens = getattr(config.speculative_config, "num_speculative_tokens", None)
    return draft_tokens if isinstance(draft_tokens, int) else None
