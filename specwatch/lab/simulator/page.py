"""Renders ``/metrics`` as the vLLM that is simulated would.

The layout of a process never changes but for HTTP handlers, so everything but the values is
prepared once for each incarnation of the engine, and a histogram is formatted only when it grew.
The tables of what each version has are in ``pages.yml``.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml
from prometheus_client.utils import floatToGoString

from specwatch.lab.simulator.counters import SimulatedHistogram
from specwatch.lab.simulator.engine import SimulatedEngine
from specwatch.lab.simulator.http_stats import SimulatedHttpStats
from specwatch.lab.simulator.scheduler import SimulatedScheduler

_STARTUP_SECONDS = 21.7
"""Between the start of a process and the creation of its metrics: seen on a small real server."""

Part = Callable[[], str]


@dataclass(frozen=True, slots=True)
class SimulatedFamily:
    """One family of ``vllm:`` series.

    ``kind`` is ``counter``, ``gauge`` or ``histogram``. ``series`` are (label="value" pairs or
    empty, quantity): a quantity is a path into an engine core, or a number that never changes.
    """

    name: str
    kind: str
    help: str
    series: tuple[tuple[str, str], ...]
    per_engine: bool


@functools.cache
def _tables() -> Any:
    text = resources.files(__package__).joinpath("pages.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def families(engine_version: str, k: int) -> tuple[SimulatedFamily, ...]:
    """All families of a version; ``k`` positions, 0 without speculation."""
    return tuple(
        SimulatedFamily(
            row["name"],
            row.get("kind", "counter"),
            row["help"],
            _series(row, k),
            row.get("per_engine", True),
        )
        for row in _tables()["families"]
        if engine_version in row.get("versions", (engine_version,))
        and (k or not row.get("speculation"))
    )


def _series(row: dict[str, Any], k: int) -> tuple[tuple[str, str], ...]:
    label = row.get("label")
    if label is None:
        return (("", row.get("value", "0")),)
    quantities = row.get("values") or {
        str(position): f"counters.accepted_per_position[{position}]" for position in range(k)
    }
    return tuple((f'{label}="{value}"', quantity) for value, quantity in quantities.items())


def cache_config(
    engine_version: str, *, engine: int, block_size: int, blocks: int, max_model_len: int
) -> dict[str, str]:
    """Labels of ``vllm:cache_config_info``, which change with every version."""
    tables = _tables()["cache_config"]
    values = {
        "engine": engine,
        "block_size": block_size,
        "blocks": blocks,
        "tokens": blocks * block_size,
        "concurrency": blocks * block_size / max_model_len,
    }
    labels = {**tables["all"], **tables[engine_version]}
    return {label: text.format_map(values) for label, text in labels.items()}


class SimulatedPage:
    """The page of one server; :meth:`render` gives its bytes at any moment."""

    def __init__(self, engine: SimulatedEngine, http: SimulatedHttpStats | None = None) -> None:
        self._engine = engine
        self._http = http or SimulatedHttpStats()
        self._model = f'model_name="{_escaped(engine.settings.served[0])}"'
        self._incarnation = -1
        self._parts: list[Part] = []

    def render(self) -> bytes:
        """The whole page, UTF-8, in the Prometheus text format."""
        if self._incarnation != self._engine.incarnation:
            self._parts = list(_joined(self._lay_out()))
            self._incarnation = self._engine.incarnation
        page = "".join(part() for part in self._parts).encode()
        return page + self._http.families(self._created)

    @property
    def _created(self) -> float | None:
        """Value of the ``_created`` series, a Unix time; None for a page without them."""
        if self._engine.settings.multiprocess:
            return None
        return self._engine.process_start + _STARTUP_SECONDS

    def _lay_out(self) -> Iterator[str | Part]:
        engine = self._engine
        settings = engine.settings
        if not settings.multiprocess:
            start = _number(engine.process_start)
            before, _, after = _tables()["process"].partition("{busy}")
            yield before.replace("{start}", start)
            yield lambda: _number(sum(core.counters.busy for core in engine.cores))
            yield after
        k = engine.speculation.k if engine.speculation else 0
        for family in families(settings.engine_version, k):
            yield from self._family(family)
        yield self._cache_config()

    def _family(self, family: SimulatedFamily) -> Iterator[str | Part]:
        name = f"vllm:{family.name}"
        exposed = f"{name}_total" if family.kind == "counter" else name
        yield f"# HELP {exposed} {family.help}\n# TYPE {exposed} {family.kind}\n"
        cores = self._engine.cores if family.per_engine else self._engine.cores[:1]
        series = [
            (pair, quantity, f'engine="{core.index}"' if family.per_engine else "", core)
            for core in cores
            for pair, quantity in family.series
        ]
        for pair, quantity, engine, core in series:
            if family.kind == "histogram":
                yield _HistogramText(
                    operator.attrgetter(quantity)(core), name, pair, engine, self._model
                )
                continue
            yield f"{exposed}{_labelled(pair, engine, self._model)} "
            yield _sample(core, quantity)
            yield "\n"
        created = self._created
        if family.kind != "gauge" and created is not None:
            yield f"# HELP {name}_created {family.help}\n# TYPE {name}_created gauge\n"
            for pair, _, engine, _ in series:
                yield f"{name}_created{_labelled(pair, engine, self._model)} {_number(created)}\n"

    def _cache_config(self) -> str:
        settings = self._engine.settings
        name = "vllm:cache_config_info"
        lines = [f"# HELP {name} Information of the LLMEngine CacheConfig\n# TYPE {name} gauge\n"]
        for core in self._engine.cores:
            pairs = cache_config(
                settings.engine_version,
                engine=core.index,
                block_size=settings.block_size,
                blocks=core.blocks,
                max_model_len=settings.max_model_len,
            )
            labels = _labelled(*(f'{key}="{_escaped(value)}"' for key, value in pairs.items()))
            line = f"{name}{labels} 1.0\n"
            if line not in lines:  # version 0.8.5 does not name the engine
                lines.append(line)
        return "".join(lines)


def _joined(pieces: Iterator[str | Part]) -> Iterator[Part]:
    """The same pieces with neighbouring fixed ones made one."""
    for fixed, group in itertools.groupby(pieces, key=lambda piece: isinstance(piece, str)):
        if fixed:
            yield "".join(piece for piece in group if isinstance(piece, str)).__str__
        else:
            yield from (piece for piece in group if not isinstance(piece, str))


def _sample(core: SimulatedScheduler, quantity: str) -> str | Part:
    if quantity.isdigit():
        return _number(int(quantity))
    read = _read(core, quantity)
    return lambda: _number(read())


def _read(core: SimulatedScheduler, quantity: str) -> Callable[[], float]:
    """A reader of a path such as ``counters.requests[stop]``; ``[len]`` is the length."""
    path, _, key = quantity.partition("[")
    target = operator.attrgetter(path)
    key = key.rstrip("]")
    if key == "len":
        return lambda: len(target(core))
    if key:
        item: str | int = int(key) if key.isdigit() else key
        return lambda: target(core)[item]
    return lambda: target(core)


def _number(value: float) -> str:
    """A sample value as prometheus-client writes it."""
    if type(value) is int and -1_000_000 < value < 1_000_000:
        return f"{value}.0"
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escaped(value: str) -> str:
    """A label value with backslash, quote and line feed escaped."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _labelled(*labels: str) -> str:
    """Label pairs in the order of a page: sorted, without the empty ones; empty for none."""
    present = sorted(label for label in labels if label)
    return "{" + ",".join(present) + "}" if present else ""


class _HistogramText:
    """The series of one histogram, formatted again only after an observation."""

    def __init__(self, histogram: SimulatedHistogram, name: str, *labels: str) -> None:
        self._histogram = histogram
        bounds = [*(_number(bound) for bound in histogram.bounds), "+Inf"]
        lines = [f"{name}_bucket" + _labelled(*labels, f'le="{bound}"') for bound in bounds]
        lines += [f"{name}_{part}{_labelled(*labels)}" for part in ("count", "sum")]
        self._template = "".join(line.replace("%", "%%") + " %s\n" for line in lines)
        self._count = -1
        self._text = ""

    def __call__(self) -> str:
        """The lines at this moment."""
        histogram = self._histogram
        if histogram.count != self._count:
            values = [_number(count) for count in itertools.accumulate(histogram.counts)]
            values += (_number(histogram.count), _number(float(histogram.sum)))
            self._text = self._template % tuple(values)
            self._count = histogram.count
        return self._text
