"""A model that brings its own speculation: a checkpoint of *speculators*.

Source: ``maybe_override_with_speculators`` of vLLM 0.32, which serves the verifier that the
checkpoint names, with the checkpoint as its draft, whatever else is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specwatch.advise.asked import Asked
from specwatch.advise.command import whole
from specwatch.advise.model import Finding
from specwatch.errors import ConfigError

_METHODS = {"peagle": "eagle3", "dflash2": "dflash"}


def unfolded(asked: Asked, config: Mapping[str, Any], where: str) -> Asked:
    """Return what is asked once the model's own speculation is taken apart.

    ``config`` is that of the target; one without speculation of its own changes nothing. Raises
    ConfigError where it names no verifier.
    """
    given = config.get("speculators_config")
    if given is None:
        return asked
    verifier = given.get("verifier") if isinstance(given, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    method = config.get("speculators_model_type")
    if not isinstance(name, str) or not isinstance(method, str):
        raise ConfigError(
            f"{where}: speculators_config has no verifier.name_or_path, or speculators_model_type"
            " is missing: expected a checkpoint made by the package speculators"
        )
    method = _METHODS.get(method, method)
    k = asked.k
    if k is None:
        k = _tokens(given)
    found = Finding(
        topic="method",
        level="note",
        text=f"the model brings its own speculation: {name} is served, with it as a draft",
        reason="whatever the flags say of method and model",
        source=f"{where}: speculators_config",
    )
    return replace(
        asked,
        target=name,
        draft=asked.target,
        method=method,
        k=k,
        speculation={**asked.speculation, "num_speculative_tokens": k},
        findings=(*asked.findings, found),
    )


def _tokens(given: Mapping[str, Any]) -> int | None:
    proposals = given.get("proposal_methods")
    first = proposals[0] if isinstance(proposals, list) and proposals else None
    tokens = first.get("speculative_tokens") if isinstance(first, Mapping) else None
    return whole(tokens)
