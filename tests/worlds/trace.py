"""What a world's server counted in each minute, with speculation or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specwatch.model import (
    ALL_TEMPERATURES,
    MINUTE,
    Environment,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Source,
    Tally,
    Window,
)
from specwatch.simulated.counters import INTER_TOKEN_BOUNDS, TTFT_BOUNDS, length_bounds

START = 1_795_003_200
"""Unix time of the first minute: midnight, UTC."""
TARGET, MODEL = "world", "simulated"
_ACCEPTANCE_BOUNDS = tuple(step / 20 for step in range(1, 21))
SINGLES = ("drafts", "draft_tokens", "accepted_tokens", "prompt_tokens", "generation_tokens")
HISTOGRAMS = {
    "ttft": TTFT_BOUNDS,
    "tpot": INTER_TOKEN_BOUNDS,
    "request_acceptance": _ACCEPTANCE_BOUNDS,
}
_GAUGES = ("busy_seconds", "running_seconds", "waiting_seconds", "running_max", "waiting_max")

Columns = npt.NDArray[Any]


@dataclass(frozen=True)
class Trace:
    """Minutes of one world in one mode, as columns.

    ``gauges`` has a row for each minute, ``engine`` what the server counted in it, ``buckets`` what
    a tap that sees everything counted, by temperature. ``lengths`` are the number of requests
    that ended and the sum of their mean accepted lengths.
    """

    mode: Mode
    k: int
    max_model_len: int
    gauges: Columns
    engine: Columns
    lengths: Columns
    buckets: Mapping[str, Columns]

    def __len__(self) -> int:
        return len(self.gauges)

    def upto(self, minutes: int) -> Trace:
        """Its first minutes."""
        return Trace(
            self.mode, self.k, self.max_model_len, self.gauges[:minutes], self.engine[:minutes],
            self.lengths[:minutes],
            {label: columns[:minutes] for label, columns in self.buckets.items()},
        )  # fmt: skip

    @property
    def tokens(self) -> Columns:
        """Tokens after a request's first, each minute."""
        first = self.engine[:, self._at(SINGLES[-1]) + 1 + self.k + 2 :][:, : len(TTFT_BOUNDS) + 1]
        return np.asarray(self.engine[:, SINGLES.index("generation_tokens")] - first.sum(axis=1))

    @property
    def seconds(self) -> Columns:
        """Time that requests spent on them, each minute: their sum is TPOT times tokens."""
        return np.asarray(self.engine[:, self._between() + 1])

    @property
    def busy(self) -> Columns:
        """Seconds that the engine worked, each minute."""
        return np.asarray(self.engine[:, self._between() + 2])

    def windows(self, minute: int, start: int | None = None) -> list[Window]:
        """The closed windows of a minute: all temperatures, and each that was seen.

        ``start`` is the Unix time to give them, that of the trace where it is None.
        """
        begins = START + minute * MINUTE if start is None else start
        whole = self._window(begins, minute)
        parts = [
            (label, columns[minute]) for label, columns in self.buckets.items()
            if columns[minute].any()
        ]  # fmt: skip
        seen = sum(int(row[0]) for _, row in parts)
        return [whole] + [
            Window(
                series=SeriesId("worlds", TARGET, MODEL, label), start=begins, length=MINUTE,
                mode=self.mode, tally=self._tally(row), gauges=whole.gauges,
                environment=whole.environment, source=Source.TAP,
                server_drafts=whole.tally.drafts, source_drafts=seen,
                observed_seconds=60.0, scrapes_ok=12,
            )
            for label, row in parts
        ]  # fmt: skip

    def _window(self, begins: int, minute: int) -> Window:
        gauges = dict(zip(_GAUGES, self.gauges[minute].tolist(), strict=True))
        for name in ("running_max", "waiting_max"):
            gauges[name] = int(gauges[name])
        return Window(
            series=SeriesId("worlds", TARGET, MODEL, ALL_TEMPERATURES), start=begins, length=MINUTE,
            mode=self.mode, tally=self._whole(self.engine[minute]),
            gauges=Gauges(sampled_seconds=60.0, kv_cache_usage_max=0.1, **gauges),
            environment=Environment("0.32.0", f"world-{self.k}"),
            observed_seconds=60.0, scrapes_ok=12,
        )  # fmt: skip

    def _at(self, single: str) -> int:
        return SINGLES.index(single)

    def _between(self) -> int:
        """Column of the count of times between outputs."""
        return len(SINGLES) + self.k + 2 + len(TTFT_BOUNDS) + 2 + len(INTER_TOKEN_BOUNDS) + 2

    def _whole(self, row: Columns) -> Tally:
        at = self._between()
        parts, rest = self._parts(row[:at], ("ttft", "tpot")), row[at:].tolist()
        lengths = length_bounds(self.max_model_len)
        parts["inter_token"] = Histogram((), (int(rest[0]),), rest[1])
        parts["output_length"] = Histogram(lengths, tuple(map(int, rest[3:-1])), rest[-1])
        return Tally(preemptions=0, **parts)

    def _tally(self, row: Columns) -> Tally:
        return Tally(**self._parts(row, tuple(HISTOGRAMS)))

    def _parts(self, columns: Columns, names: tuple[str, ...]) -> dict[str, Any]:
        row = columns.tolist()
        speculates = self.mode is Mode.ON
        found: dict[str, Any] = {
            name: int(row[at]) if speculates or at > 2 else None for at, name in enumerate(SINGLES)
        }
        at = len(SINGLES)
        positions = tuple(map(int, row[at : at + self.k]))
        found["accepted_per_position"] = positions if speculates else None
        at += self.k
        found["requests"] = {"stop": int(row[at]), "length": int(row[at + 1])}
        at += 2
        for name in names:
            bounds = HISTOGRAMS[name]
            end = at + len(bounds) + 1
            found[name] = Histogram(bounds, tuple(map(int, row[at:end])), row[end])
            at = end + 1
        return found
