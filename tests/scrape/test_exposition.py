"""The fast page reader gives what prometheus-client's parser gives."""

from __future__ import annotations

import contextlib
import math
import random
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.model import PageLimits, Series
from specwatch.engines.sample_names import SAMPLES
from specwatch.errors import PageError, ScrapeReason
from specwatch.scrape import exposition
from specwatch.scrape.exposition import PageReader
from tests.pages import CAPTURES, capture, escape, gauge, oracle, page, read


def same(first: dict[Series, float], second: dict[Series, float]) -> bool:
    return first.keys() == second.keys() and all(
        a == second[s] or (math.isnan(a) and math.isnan(second[s])) for s, a in first.items()
    )


def test_captured_pages_read_as_the_general_parser_reads_them():
    """By a new reader, and by one that has read pages with speculation on, off, and n-gram."""
    expected = {path: oracle(path.read_text())[0] for path in CAPTURES}
    reader = PageReader()
    for path in CAPTURES + CAPTURES[::-1]:
        assert len(expected[path]) > (100 if path.name.startswith("vllm") else 6)
        assert same(read(path.read_bytes()), expected[path])
        assert same(reader.read(path.read_bytes()), expected[path])


names = st.sampled_from(
    sorted(SAMPLES)
    + [
        "vllm:spec_decode_num_drafts_created",
        "vllm:other_total",
        "go_goroutines",
        "vllm:prompt_tokens",
    ]
)
label_values = st.one_of(
    st.sampled_from(["0", "1", "0.5", "+Inf", "tiny", ""]),
    st.text('ab\\"\n{}, =#\té😀', max_size=6),
)
labels = st.dictionaries(
    st.sampled_from(
        ["engine", "model_name", "le", "position", "finished_reason", "pid", "tp_rank", "x"]
    ),
    label_values,
    max_size=4,
)
values = st.one_of(
    st.integers(0, 2**53).map(float),
    st.floats(allow_nan=True, allow_infinity=True),
).flatmap(lambda v: st.sampled_from(spellings(v)))


def spellings(value: float) -> list[str]:
    if math.isnan(value):
        return ["NaN", "nan"]
    if math.isinf(value):
        return ["+Inf", "Inf"] if value > 0 else ["-Inf"]
    return [
        repr(value),
        f"{value:e}".replace("e", "E") if value == float(f"{value:e}") else repr(value),
    ]


@st.composite
def pages(draw: st.DrawFn) -> str:
    """Any text-format page without duplicate series, with and without comments and timestamps."""
    samples = draw(
        st.lists(
            st.tuples(names, labels, values),
            max_size=12,
            unique_by=lambda s: (s[0], frozenset(s[1].items())),
        )
    )
    lines: list[str] = []
    for name, pairs, value in samples:
        if draw(st.booleans()):
            lines.append(f"# TYPE {draw(names)} {draw(st.sampled_from(['gauge', 'untyped']))}")
        if draw(st.integers(0, 9)) == 0:
            lines.append(draw(st.sampled_from(["", "# a remark", "# HELP vllm:x A vllm:x 1"])))
        text = ",".join(f'{k}="{escape(v)}"' for k, v in pairs.items())
        if draw(st.integers(0, 9)) == 0 and text:
            text += ","
        stamp = draw(st.sampled_from(["", "", "", " 1395066363000"]))
        # prometheus-client 0.20 takes a tab before a value with a timestamp for part of the name.
        gap = draw(st.sampled_from([" ", " ", " ", "  ", " " if stamp else "\t"]))
        lead = draw(st.sampled_from(["", "", "", " "]))
        lines.append(f"{lead}{name}" + (f"{{{text}}}" if text else "") + f"{gap}{value}{stamp}")
    return "\n".join(lines) + "\n"


@given(st.lists(pages(), min_size=1, max_size=2))
def test_any_page_gives_the_same_samples_through_both_readers(some_pages):
    reader = PageReader()
    for text in [*some_pages, some_pages[0]]:
        whole, ours = oracle(text)
        found = None
        with contextlib.suppress(PageError):
            found = reader.read(text.encode())
        assert ours > len(whole) if found is None else same(found, whole)


@st.composite
def pairs_of_pages(draw: st.DrawFn) -> tuple[str, str]:
    """A page, and one with other digits, letters, lines, or another page."""
    page = draw(pages())
    places = draw(st.lists(st.integers(0, len(page) - 1), max_size=4))
    changed = [*page]
    for place in places:
        letters = "0123456789" if changed[place].isdigit() else '0e.-+_ \n{"v'
        if changed[place].isdigit() or draw(st.integers(0, 3)) == 0:
            changed[place] = draw(st.sampled_from(letters))
    lines = "".join(changed).rstrip("\n").split("\n")
    if draw(st.integers(0, 4)) == 0:
        lines = draw(st.permutations(lines))
    return page, draw(st.sampled_from(["\n".join(lines) + "\n", draw(pages())]))


@given(pairs_of_pages())
def test_a_page_read_at_a_glance_has_the_samples_that_it_has_when_it_is_read(both):
    first, second = (text.encode() for text in both)
    reader = PageReader()
    with contextlib.suppress(PageError):
        reader.read(first)
        own = reader.learn(first)
        if own is not None:
            assert same(own.samples(), PageReader().read(first))
        glance = reader.glance(second)
        if glance is not None:
            assert same(glance.samples(), PageReader().read(second))


def test_a_page_of_the_same_server_is_read_at_a_glance():
    page = capture("draft-k4.2")
    reader = PageReader()
    reader.read(page)
    assert reader.learn(page)
    for value in (b"1.0", b"12", b"3e4", b"-0.5"):
        numbers = page.replace(b" 0.0\n", b" " + value + b"\n")
        found = reader.glance(numbers)
        assert (found is None) == (value == b"3e4"), "a letter is part of the text"
        assert found is None or same(found.samples(), PageReader().read(numbers))
    for other in (
        page.replace(b"vllm:prompt_tokens_total{", b"vllm:prompt_token_total{"),
        page.replace(b'le="0.1"', b'le="0.2"'),
        page.replace(b".0\n", b" 1\n", 1),
        page + b"vllm:num_requests_running{} 1\n",
    ):
        assert other != page
        assert reader.glance(other) is None


def test_a_foreign_sample_that_becomes_ours_is_not_overlooked():
    """Names of ours have digits."""
    page = b"vllm:num_requests_running 1\nvllm:e3e_request_latency_seconds_sum 2\n"
    reader = PageReader()
    reader.read(page)
    assert reader.learn(page) is None


def test_a_tab_may_stand_before_a_value_with_a_timestamp():
    line = "vllm:num_requests_running{x}\t2.5\t1395066363000\n"
    assert list(read(line.replace("{x}", "")).values()) == [2.5]
    assert list(read(line.replace("{x}", '{model_name="m"}')).values()) == [2.5]


@given(st.binary(max_size=200))
def test_any_bytes_give_samples_or_a_page_error(noise):
    reader = PageReader()
    for data in (noise, noise + b"\n", b"vllm:num_requests_running" + noise + b"\n"):
        with contextlib.suppress(PageError):
            assert all(isinstance(value, float) for value in reader.read(data).values())


def test_shuffled_labels_and_lines_change_nothing():
    lines = [
        line for line in capture("draft-k4.2").decode().splitlines() if not line.startswith("#")
    ]
    random.Random(1).shuffle(lines)
    text = "\n".join(lines) + "\n"
    assert same(read(text), read(capture("draft-k4.2")))


def test_openmetrics_with_exemplars_and_eof():
    text = (
        "# TYPE vllm:time_to_first_token_seconds histogram\n"
        'vllm:time_to_first_token_seconds_bucket{le="0.5",model_name="m"} 3 # {id="a b"} 0.4 1.5\n'
        'vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 4.0\n'
        'vllm:time_to_first_token_seconds_created{model_name="m"} 1.7e9\n'
        "# TYPE vllm:spec_decode_num_drafts counter\n"
        'vllm:spec_decode_num_drafts_total{model_name="m"} 12.0 1600000000.5\n'
        "# EOF\n"
    )
    assert read(text) == {
        Series("ttft", "bucket", "m", "", "0.5"): 3.0,
        Series("ttft", "bucket", "m", "", "+Inf"): 4.0,
        Series("drafts", "", "m", "", ""): 12.0,
    }


def test_quoted_metric_names():
    text = '{"vllm:num_requests_running",model_name="m"} 2\n'
    assert read(text) == {Series("running", "", "m", "", ""): 2.0}


def test_labels_that_mean_nothing_to_us_are_combined():
    """In multi-process mode a gauge may stand once per process."""
    text = page(
        gauge("vllm:num_requests_running", 2, model_name="m", pid="1"),
        gauge("vllm:num_requests_running", 3, model_name="m", pid="2"),
        gauge("vllm:kv_cache_usage_perc", 0.2, model_name="m", pid="1"),
        gauge("vllm:kv_cache_usage_perc", 0.3, model_name="m", pid="2"),
    )
    assert sorted(read(text).values()) == [0.3, 5.0]


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("", ScrapeReason.NOT_METRICS, "the page is empty"),
        ("<!DOCTYPE html><title>x</title>", ScrapeReason.NOT_METRICS, "found '<!DOCTYPE"),
        ('"# HELP llamacpp:x"', ScrapeReason.NOT_METRICS, "expected a metrics page"),
        ('vllm:num_requests_running{model_name="m"} 1', ScrapeReason.TRUNCATED, "after 43 bytes"),
        ('vllm:num_requests_running{model_name="m} 1\n', ScrapeReason.MALFORMED, "line 1"),
        ("\n\nvllm:num_requests_running\n", ScrapeReason.MALFORMED, "line 3"),
        ("vllm:num_requests_running{} one\n", ScrapeReason.MALFORMED, "line 1"),
        ("vllm:num_requests_running 1\n" * 2, ScrapeReason.DUPLICATE_SERIES, "line 2"),
        ('vllm:num_requests_running{a="\udcff"} 1\n', ScrapeReason.NOT_METRICS, "not UTF-8"),
        ("\udcffa 1\n", ScrapeReason.NOT_METRICS, "not UTF-8"),
    ],
)
def test_what_is_not_a_page_is_named(text, reason, words):
    with pytest.raises(PageError) as caught:
        PageReader().read(text.encode("utf-8", "surrogateescape"))
    assert caught.value.reason is reason
    assert words in str(caught.value)


def test_a_half_page_is_truncated_wherever_it_is_cut():
    whole = capture("draft-k4.2")
    for cut in range(1, len(whole), 997):
        if whole[cut - 1 : cut] != b"\n":
            with pytest.raises(PageError, match="ends in the middle"):
                PageReader().read(whole[:cut])


def test_a_page_of_megabytes_is_read_as_a_small_one_is():
    """Whatever else stands on it, between the samples that are read and behind them."""
    foreign = b"# HELP a Nothing.\n\na 1\n" + b'vllm:other_total{model_name="m"} 1\n' * 30_000
    whole = foreign + capture("draft-k4.2") + foreign
    assert same(PageReader().read(whole), read(capture("draft-k4.2")))
    quoted = foreign + b' \t{"vllm:num_requests_running",model_name="m"} 2 1600\r\n' + foreign
    assert PageReader().read(quoted) == {Series("running", "", "m", "", ""): 2.0}
    for line, words in ((b"vllm:num_requests_running{ 1\n", "cannot read"), (b"", "occurs twice")):
        first = b"vllm:num_requests_running 1\n"
        page = foreign + (line or first) + first
        number = page.count(b"\n", 0, page.rfind(line or first)) + 1
        with pytest.raises(PageError, match=f"line {number}: .*{words}"):
            PageReader().read(page)


SAMPLE = 'vllm:num_requests_running{model_name="m"'


@pytest.mark.parametrize(
    ("limits", "good", "bad", "words"),
    [
        ({"sample_limit": 2}, SAMPLE + ',pid="1"} 1\n', None, "has 3 samples that specwatch reads"),
        ({"label_limit": 2}, SAMPLE + ',a="1"} 1\n', SAMPLE + ',a="1",b="1"} 1\n', "more than 2"),
        (
            {"label_name_length_limit": 10},
            SAMPLE + ',abcdefghij="1"} 1\n',
            SAMPLE + ',abcdefghijk="1"} 1\n',
            "'abcdefghijk' of 'vllm:num_requests_running' has 11 bytes: expected at most 10",
        ),
        (
            {"label_value_length_limit": 4},
            SAMPLE + r',a="\\\\\n\n",b="éé"} 1' + "\n",
            SAMPLE + ',b="ééx"} 1\n',
            "'b' of 'vllm:num_requests_running' has a value of 5 bytes: expected at most 4",
        ),
        (
            {"label_value_length_limit": 4},
            SAMPLE + "} 1\n",
            '{"vllm:num_requests_running",b="xxxxxxxxx"} 1\n',
            "has a value of 9 bytes",
        ),
    ],
)
@pytest.mark.parametrize("size", ["small", "large"])
def test_a_page_beyond_a_limit_is_refused_by_its_name(limits, good, bad, words, size):
    ((key, limit),) = limits.items()
    foreign = 'node_load{a="1",b="2",abcdefghijklm="long"} 1\n' * (5 if size == "small" else 30_000)
    good = foreign + good
    if bad is None:
        good, bad = good + SAMPLE + "} 1\n", good + SAMPLE + "} 1\n" + SAMPLE + ',pid="2"} 1\n'
    reader = PageReader(PageLimits(**limits))
    reader.read(good.encode())
    with pytest.raises(PageError, match=re.escape(words)) as caught:
        reader.read((foreign + bad).encode())
    assert caught.value.reason == key
    assert str(caught.value).endswith(f"raise {key}")
    reader.read(good.encode())
    PageReader(PageLimits(**{key: 0})).read((foreign + bad).encode())
    assert limit != getattr(PageLimits(), key)


def test_a_label_that_another_server_may_have_is_refused_all_the_same():
    line = b'vllm:num_requests_running{model_name="mmmmm"} 1\n'
    PageReader().read(line)
    with pytest.raises(PageError, match="label_value_length_limit"):
        PageReader(PageLimits(label_value_length_limit=4)).read(line)


EMOJI = "\N{GRINNING FACE}".encode()
HUGE = {
    "label": b'a="' + b"x" * 4_000_000 + b'"} 1',
    "escapes": b'a="' + b"\\n" * 2_000_000 + b'"} 1',
    "wide characters": b'a="' + b"x" * 4_000_000 + EMOJI + b'"} 1',
    "label that does not end": b'a="' + b"x" * 4_000_000 + EMOJI,
    "label's name": b"x" * 4_000_000 + b'="1"} 1',
    "value": b"} " + b"1" * 4_000_000 + EMOJI,
    "same label again and again": b'a="",' * 800_000 + b"} 1",
}


@pytest.mark.parametrize("rest", HUGE.values(), ids=HUGE.keys())
def test_a_sample_of_megabytes_is_refused_before_it_is_copied(rest):
    page = b"vllm:num_requests_running{" + rest + b"\n"
    tracemalloc.start()
    try:
        with pytest.raises(PageError, match="label_value_length_limit"):
            PageReader().read(page)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * len(page)


def test_a_foreign_page_of_wide_characters_takes_no_more_memory_than_it_is_long():
    page = b"x" * 4_000_000 + EMOJI + b" 1\n"
    tracemalloc.start()
    try:
        assert PageReader().read(page) == {}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(page)


def test_a_large_page_may_have_a_sample_with_all_that_the_limits_allow():
    labels = ",".join(f'{number:a>256}="{chr(92) * 4096}"' for number in range(128))
    foreign = 'node_load{a="1"} 1\n' * 60_000
    page = f"{foreign}vllm:num_requests_running{{{labels}}} 1\n"
    assert list(PageReader().read(page.encode()).values()) == [1.0]


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (
            'vllm:num_requests_running{a="1",a="2"} 1',
            "'a' of 'vllm:num_requests_running' occurs twice",
        ),
        ('vllm:num_requests_running{"vllm:num_requests_waiting"} 1', "second name"),
    ],
)
def test_a_label_or_a_name_that_occurs_twice_is_malformed(sample, words):
    with pytest.raises(PageError, match=words) as caught:
        PageReader().read(f"{sample}\n".encode())
    assert caught.value.reason == "malformed"


def test_a_number_that_only_python_reads_is_refused():
    reader = PageReader()
    reader.read(b'vllm:prompt_tokens_total{model_name="m"} 1\n')
    with pytest.raises(PageError, match="is not a number"):
        reader.read(b'vllm:prompt_tokens_total{model_name="m"} 1_0\n')


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'le="0.5"} 1', b'le="0.6"} 1'),  # numbers in labels are left out of the text
        (b'model_name="m"', b'model_name="n"'),
        (b"} 2\n", b"} NaN\n"),
    ],
)
def test_a_page_with_other_series_or_letters_is_not_glanced_at(before: bytes, after: bytes) -> None:
    page = (
        b"process_start_time_seconds 1\n"
        b'vllm:time_to_first_token_seconds_bucket{model_name="m",le="0.5"} 1\n'
        b'vllm:time_to_first_token_seconds_bucket{model_name="m",le="+Inf"} 2\n'
    )
    reader = PageReader()
    reader.read(page)
    assert reader.learn(page) is not None
    assert reader.glance(page.replace(b"} 2\n", b"} 3\n")) is not None
    assert before in page
    assert reader.glance(page.replace(before, after)) is None


def test_what_servers_that_came_and_went_had_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "_REMEMBERED_BY_ALL", 100_000)
    for server in range(40):
        text = "".join(
            f'vllm:generation_tokens_total{{model_name="m{server}",engine="{n}"}} {n}\n'
            for n in range(50)
        )
        reader = PageReader()
        assert len(reader.read(text.encode())) == 50
        assert len(reader.read(text.encode())) == 50
    assert sum(map(len, exposition._KNOWN._by_limits.values())) < 200
