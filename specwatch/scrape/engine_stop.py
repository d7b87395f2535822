"""Whether a process drafts although its page has counts of drafts: no page says so.

An engine may have stopped permanently (TensorRT-LLM). And vLLM with ``PROMETHEUS_MULTIPROC_DIR``
reads its counters from files, which stay in that folder: after a restart without speculation the
totals of the process before still stand on the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specwatch.domain.acceptance import acceptance_rate
from specwatch.domain.model import Series
from specwatch.engines.sample_names import engine_of
from specwatch.engines.vllm import VLLM
from specwatch.scrape import tally

LEAST_REQUESTS, LEAST_TOKENS = 20, 1000
"""Without a draft, from which on it is inferred that there will be none: each request of more than
one token has one where the engine drafts."""


@dataclass(frozen=True, slots=True)
class EngineStop:
    """Since when (Unix time) an engine drafts no more, as is inferred from its counters.

    With ``at_least`` no draft was seen before: it may have stopped earlier. ``acceptance_rate`` is
    that of its drafts since it started, ``tokens`` were generated without a draft.
    """

    since: float
    at_least: bool
    acceptance_rate: float | None
    tokens: int


@dataclass(slots=True)
class _Silence:
    since: float
    load: float | None = None
    """The most running requests with which drafts were counted; None if none was."""
    running: float = 0.0
    requests: int = 0
    tokens: int = 0


class DraftWatch:
    """Watches the drafts of the models of one process that may have stopped, or never begun."""

    def __init__(self) -> None:
        self._silences: dict[str, _Silence] = {}
        self.stops: dict[str, EngineStop] = {}
        """Models of an engine that has stopped."""
        self.left_over: set[str] = set()
        """Models whose counts of drafts are those of an earlier process."""

    def see(
        self,
        models: Mapping[str, Mapping[Series, float]],
        increments: Mapping[Series, float],
        now: float,
        *,
        from_files: bool = False,
    ) -> None:
        """Take the samples of a page by model, what it counts beyond the page before, and its Unix
        time; ``from_files``: the counters may be those of earlier processes.

        Work at a higher load than drafts were seen at tells nothing: ``max_concurrency`` and a
        schedule of draft lengths pause drafting there.
        """
        stopping = {
            model: samples
            for model, samples in models.items()
            if (engine := engine_of(samples)).stops_permanently or (from_files and engine is VLLM)
        }
        counted = tally.parts_of(increments).models if stopping else {}
        for model, samples in stopping.items():
            moved, total = tally.tally_of(counted.get(model, {}), []), tally.tally_of(samples, [])
            silence = self._silences.setdefault(model, _Silence(now))
            running = tally.sampled(samples).running or 0.0
            busiest, silence.running = max(running, silence.running), running
            if moved.drafts:
                load = max(busiest, silence.load or 0.0)
                self._silences[model] = _Silence(now, load, running)
            elif silence.load is None or busiest <= silence.load:
                requests = sum(moved.requests.values())
                silence.requests += requests
                silence.tokens += max(0, (moved.generation_tokens or 0) - requests)
            silence, drafted = self._silences[model], bool(total.drafts)
            silent = silence.requests >= LEAST_REQUESTS and silence.tokens >= LEAST_TOKENS
            self.stops.pop(model, None)
            self.left_over.discard(model)
            if not (drafted and silent):
                continue
            if engine_of(samples).stops_permanently:
                self.stops[model] = EngineStop(
                    silence.since, silence.load is None, acceptance_rate(total), silence.tokens
                )
            else:
                self.left_over.add(model)
