"""A small model of a server, which knows what it counted, and of what its pages say."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from specwatch.domain.merge import merge_tallies
from specwatch.domain.model import Tally, Window
from tests.pages import counter, gauge, histogram, page

REASONS = ("stop", "length", "abort")


class Key(NamedTuple):
    """One counter of a server: ``part`` tells the siblings of a quantity apart."""

    model: str
    engine: str
    quantity: str
    part: str = ""


@dataclass
class Engine:
    """What one engine counted for one model since its process began."""

    k: int
    bounds: tuple[float, ...]
    accepted: list[int] = field(default_factory=list)
    """Accepted tokens of each draft."""
    prompt: int = 0
    generated: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    ttft: list[float] = field(default_factory=list)

    def work(self, accepted: Iterable[int], reason: str | None, ttft: float) -> None:
        """One request: the accepted tokens of its drafts, and how it ended (None: not yet)."""
        lengths = [min(length, self.k) for length in accepted]
        if self.k:
            self.accepted += lengths
        self.generated += sum(lengths) + len(lengths)
        self.prompt += 7
        self.ttft.append(ttft)
        if reason is not None:
            self.finished[reason] += 1

    def per_position(self) -> list[int]:
        return [sum(length > index for length in self.accepted) for index in range(self.k)]

    def counts(self) -> dict[tuple[str, str], float]:
        """Every counter by quantity and part; bucket counts are cumulative."""
        counts: dict[tuple[str, str], float] = {
            ("prompt_tokens", ""): self.prompt,
            ("generation_tokens", ""): self.generated,
            ("ttft", "sum"): sum(self.ttft),
        }
        if self.k:
            counts["drafts", ""] = len(self.accepted)
            counts["draft_tokens", ""] = len(self.accepted) * self.k
            counts["accepted_tokens", ""] = sum(self.accepted)
            counts |= {("position", str(index)): n for index, n in enumerate(self.per_position())}
        counts |= {("requests", reason): self.finished[reason] for reason in REASONS}
        for bound in (*self.bounds, float("inf")):
            counts["ttft", str(bound)] = sum(seen <= bound for seen in self.ttft)
        return counts


@dataclass
class Process:
    """One life of a server; ``started`` is None in multi-process mode."""

    started: float | None
    engines: dict[tuple[str, str], Engine]
    hidden: set[tuple[str, str]] = field(default_factory=set)

    def counts(self) -> dict[Key, float]:
        """Every counter that its page shows now."""
        return {
            Key(model, engine, *name): value
            for (model, engine), state in self.engines.items()
            if (model, engine) not in self.hidden
            for name, value in state.counts().items()
        }

    def page(self, running: float = 0.0) -> str:
        """The page, with what is easily mistaken for a total."""
        text = ""
        for (model, engine), state in self.engines.items():
            if (model, engine) not in self.hidden:
                text += _engine_page(state, running, model_name=model, engine=engine)
        if self.started is not None:
            text += page(gauge("process_start_time_seconds", self.started))
        return text or page(gauge("python_info", 1.0))


def _engine_page(state: Engine, running: float, **labels: str) -> str:
    families = [
        gauge("vllm:num_requests_running", running, **labels),
        counter("vllm:prompt_tokens", state.prompt, **labels),
        gauge("vllm:prompt_tokens_created", 1.7e9, **labels),
        counter("vllm:generation_tokens", state.generated, **labels),
    ]
    families += [
        counter("vllm:request_success", state.finished[reason], finished_reason=reason, **labels)
        for reason in REASONS
    ]
    counts = state.counts()
    cumulative = [int(counts["ttft", str(b)]) for b in (*state.bounds, float("inf"))]
    buckets = [cumulative[0], *(b - a for a, b in itertools.pairwise(cumulative))]
    families.append(
        histogram(
            "vllm:time_to_first_token_seconds", state.bounds, buckets, sum(state.ttft), **labels
        )
    )
    if state.k:
        prefix = "vllm:spec_decode_num_"
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            families.append(counter(prefix + name, counts[name, ""], **labels))
            families.append(gauge(prefix + name + "_created", 1.7e9, **labels))
        families += [
            counter(prefix + "accepted_tokens_per_pos", n, position=str(index), **labels)
            for index, n in enumerate(state.per_position())
        ]
    return page(*families)


@dataclass
class Ledger:
    """What the pages that were read counted in all, and what of it is already durable."""

    total: Counter[Key] = field(default_factory=Counter)
    last: dict[Key, float] | None = None
    process: Process | None = None
    saved: tuple[Counter[Key], dict[Key, float] | None, Process | None] = (Counter(), None, None)

    def see(self, process: Process) -> None:
        """A page of ``process`` was read."""
        counts = process.counts()
        new = self._is_new(process, counts)
        if self.last is not None:
            known = {} if new else self.last
            for key, value in counts.items():
                self.total[key] += value - known.get(key, 0.0)
            counts = {**known, **counts}
        self.last = counts
        # One that looked like the one before may still be told from it by a later page.
        if new or self.process is None:
            self.process = process

    def _is_new(self, process: Process, counts: Mapping[Key, float]) -> bool:
        """A restart that no counter and no start time shows cannot be known by anyone."""
        if process is self.process or self.last is None:
            return False
        if process.started is not None or counts.keys().isdisjoint(self.last):
            return True
        grown = {key: value - self.last.get(key, 0.0) for key, value in counts.items()}
        return min(grown.values()) < 0 or any(
            grown[Key(*whose, "ttft", str(lower))] > grown[Key(*whose, "ttft", str(upper))]
            for whose, engine in process.engines.items()
            if whose not in process.hidden
            for lower, upper in itertools.pairwise((*engine.bounds, float("inf")))
        )

    def commit(self) -> None:
        """Everything read so far is in windows that were handed out."""
        self.saved = (self.total.copy(), self.last, self.process)

    def lose(self) -> None:
        """The daemon was killed: what was not handed out is gone."""
        total, self.last, self.process = self.saved
        self.total = total.copy()


def sum_of(windows: Iterable[Window], model: str) -> Tally:
    """Everything that the windows of a model counted."""
    total = Tally()
    for window in windows:
        if window.series.model_name == model:
            total = merge_tallies(total, window.tally)
    return total


def assert_adds_up(windows: Iterable[Window], expected: Mapping[Key, float]) -> None:
    """The windows hold exactly what was counted, nothing less and nothing more."""
    windows = list(windows)
    models = {key.model for key, value in expected.items() if value}
    assert models <= {window.series.model_name for window in windows}
    for model in models | {window.series.model_name for window in windows}:
        tally = sum_of(windows, model)

        def counted(quantity: str, part: str = "", model: str = model) -> float:
            return sum(
                value
                for key, value in expected.items()
                if (key.model, key.quantity, key.part) == (model, quantity, part)
            )

        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            assert (getattr(tally, name) or 0) == counted(name), name
        for name in ("prompt_tokens", "generation_tokens"):
            assert (getattr(tally, name) or 0) == counted(name), name
        for index in range(6):
            per_position = tally.accepted_per_position or ()
            assert (per_position[index] if index < len(per_position) else 0) == counted(
                "position", str(index)
            )
        assert {r: n for r, n in tally.requests.items() if n} == {
            r: counted("requests", r) for r in REASONS if counted("requests", r)
        }
        if tally.ttft is None:
            assert not counted("ttft", "inf")
            continue
        assert tally.ttft.sum == counted("ttft", "sum")
        below = 0
        for bound, count in zip((*tally.ttft.bounds, float("inf")), tally.ttft.counts, strict=True):
            below += count
            assert below == counted("ttft", str(bound)), bound
