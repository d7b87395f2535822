"""Windows to store: plain ones by hand, and strategies for all that there can be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from hypothesis import strategies as st

from specwatch.domain.baseline import BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point
from specwatch.domain.experiments import Bench, Subject, Workload
from specwatch.domain.model import (
    ALL,
    COUNTERS,
    HISTOGRAMS,
    MAPPINGS,
    Batch,
    Counters,
    Cursor,
    Environment,
    Gauges,
    Histogram,
    Mode,
    Segment,
    Series,
    SeriesId,
    Source,
    Tally,
    Window,
)
from specwatch.guard.state import Step
from specwatch.rules.decisions import Decision
from specwatch.scrape.tally import MOST_KEYS
from specwatch.store.batches import PackedBatch, pack_batch
from specwatch.store.column_texts import texts_of
from specwatch.store.counts import COLUMNS, LARGEST, PackedWindow
from specwatch.store.frame import Frame
from specwatch.store.frame_sum import Group, sum_rows
from specwatch.store.guard_records import GuardBook
from specwatch.store.leases import Lease
from specwatch.store.repository import Store
from tests.segments import segment

FOREVER = {"since": 0, "until": 10**11}
T0 = 1_700_000_000 // 3600 * 3600


def minute(
    start: int,
    *,
    daemon: str = "left",
    target: str = "chat",
    model_name: str = "llama",
    temperature: str = "all",
    drafts: int = 100,
    concurrency: float = 1.0,
    mode: Mode = Mode.ON,
    scrapes_ok: int = 12,
    engine_version: str = "0.11.0",
    bounds: tuple[float, ...] = (0.1, 0.5, 1.0),
) -> Window:
    """One minute; its counts are multiples of its drafts."""
    counts = (drafts, *[2 * drafts] * (len(bounds) - 1), 1)
    return Window(
        series=SeriesId(daemon, target, model_name, segment(temperature)),
        start=start,
        length=60,
        mode=mode,
        tally=Tally(
            drafts=drafts,
            draft_tokens=3 * drafts,
            accepted_tokens=2 * drafts,
            accepted_per_position=(drafts, drafts // 2, drafts // 4),
            generation_tokens=3 * drafts,
            requests={"stop": drafts, "length": 1},
            ttft=Histogram(bounds, counts, drafts / 8),
        ),
        gauges=Gauges(60.0, 60.0, 60.0 * concurrency, 0.0, 4, 1, 0.25),
        environment=Environment(engine_version, "abc"),
        observed_seconds=60.0,
        scrapes_ok=scrapes_ok,
    )


def cursor(
    target: str = "chat", value: float = 1.0, wall: float = 5.0, model: str = "llama"
) -> Cursor:
    """A cursor with two series."""
    series = (Series("drafts", "", model, "0", ""), Series("ttft", "bucket", model, "0", "0.5"))
    return Cursor(target, dict(zip(series, (value, value / 3), strict=True)), 17.25, wall)


def batch(*windows: Window, cursor: Cursor | None = None) -> PackedBatch:
    """Packed windows."""
    return pack_batch(Batch(windows, cursor))


def fill_tables(store: Store, time: float, target: str = "chat", load_bin: int = 1) -> None:
    """Write a row with a time into every table, for one target."""
    start = int(time // 60) * 60
    store.write([batch(minute(start, target=target), cursor=cursor(target, wall=time))], time)
    point = Point(time, 2.0, 60.0, 3000.0, by_token=True)
    key = BaselineKey(target, "llama", None, None)
    store.write_measurements([Measurement(key, load_bin, Origin.WINDOWS, (point,))], time)
    inputs = {"values": {"speedup": 0.9}, "attribution": {"cause": "load"}}
    decision = Decision(
        "left", target, "llama", ALL, "r", time, "breach", "critical", "alert", inputs
    )
    store.write_verdicts([decision], time)
    store.add_experiment(bench(time, target), time)
    book = GuardBook(store)
    book.hold([target], f"holder of {target}:1", time, able=True)
    book.change(target, lambda state: Step(state, "a note", {"x": 1.5}), time, by="ann")
    Lease(store, "one", shard=target).take(time)


SUBJECT = Subject(target="chat", url="http://127.0.0.1:8000", model_name="llama", mode="on", k=4)
WORKLOAD = Workload(
    endpoint="chat",
    source="built-in",
    prompts=2,
    digest="d",
    max_tokens=64,
    temperatures=(0.0, None),
    seed=0,
)


def bench(ended: float, target: str = "chat") -> Bench:
    """A bench run without measured levels."""
    return Bench(
        version="1",
        began=ended - 60,
        ended=ended,
        complete=True,
        subject=msgspec.structs.replace(SUBJECT, target=target),
        workload=WORKLOAD,
        levels=(),
    )


def frame_of(packed: Sequence[PackedWindow]) -> Frame:
    """Windows of one series as they are read."""
    numbers = {each.context: number for number, each in enumerate(packed, 1)}
    rows = [(each.start, 1, numbers[each.context], *each.columns()) for each in packed]
    texts = texts_of(("start", "series_id", "context_id", *COLUMNS), rows)
    return Frame(texts, {number: context for context, number in numbers.items()})


def unpack(packed: PackedWindow) -> Window:
    """The window that was packed."""
    group = Group(packed.series, packed.start, packed.length)
    (window,) = sum_rows(frame_of([packed]), np.zeros(1, np.int64), [group])
    return window


def read(store: Store, **selection: object) -> list[Window]:
    """All windows of a store."""
    return list(store.windows(**(FOREVER | selection)))


def starts(windows: Iterable[Window]) -> list[int]:
    """When the windows start."""
    return [window.start for window in windows]


_counts = st.integers(0, LARGEST)
_amounts = st.floats(allow_nan=False, allow_infinity=False)
_millionths = st.integers(0, LARGEST // 4).map(lambda n: n / 1e6)
"""What is stored in microseconds, or in millionths: a double has each of them up to 71 years."""
_names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
_keys = st.text(
    st.characters(codec="utf-8", min_codepoint=32, exclude_characters='"\\'), max_size=12
)


@st.composite
def histograms(draw: st.DrawFn, sums: st.SearchStrategy[float] = _millionths) -> Histogram:
    """Any histogram, of no bounds at all too."""
    bounds = draw(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), unique=True, max_size=5)
    )
    size = len(bounds) + 1
    counts = draw(st.lists(_counts, min_size=size, max_size=size))
    return Histogram(tuple(sorted(bounds)), tuple(counts), draw(sums), draw(st.booleans()))


_segments = st.builds(Segment, _names, _names)

tallies = st.builds(
    Tally,
    accepted_per_position=st.none() | st.lists(_counts, max_size=5).map(tuple),
    **{
        name: st.dictionaries(
            st.sampled_from(["stop", "timings", "several"]) | _keys,
            _counts.filter(bool),
            max_size=MOST_KEYS,
        )
        for name in MAPPINGS
    },
    **dict.fromkeys(COUNTERS, st.none() | _counts),
    **{
        name: st.none()
        | (histograms(_counts.map(float)) if name == "output_length" else histograms())
        for name in HISTOGRAMS
    },
)
gauges = st.builds(
    Gauges,
    _millionths,
    _millionths,
    _millionths,
    _millionths,
    _counts,
    _counts,
    st.none() | _millionths,
    st.none() | _counts,
    st.none() | _counts,
)
windows = st.builds(
    Window,
    series=st.builds(SeriesId, _names, _names, _names, _segments),
    start=st.integers(0, 10**9).map(lambda n: n * 60),
    length=st.just(60),
    mode=st.sampled_from(Mode),
    tally=tallies,
    gauges=gauges,
    environment=st.builds(Environment, st.none() | _names, st.none() | _names),
    source=st.sampled_from(Source),
    server_drafts=st.none() | _counts,
    source_drafts=st.none() | _counts,
    observed_seconds=_millionths,
    scrapes_ok=_counts,
    scrapes_failed=_counts,
    restarts=_counts,
    down_seconds=_millionths,
)
_samples = st.dictionaries(
    st.builds(Series, _names, _names, _names, _names, _names, _segments), _amounts
)
_starts = st.none() | _amounts
cursors = st.builds(
    Cursor, _names, _samples, _starts, _amounts, st.none() | st.builds(Counters, _samples, _starts)
)
