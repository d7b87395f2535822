"""What SGLang, LMDeploy, TensorRT-LLM and TokenSpeed say, and what they do not.

The pages are written after the metric definitions of these engines, with figures made up:

=====================  ==========================================================================
SGLang 0.5.9, 0.5.23   ``srt/observability/metrics_collector.py``: the scheduler's gauges of each
                       rank, the tokenizer's counters of finished requests; ``spec_verify_calls``
                       from 0.5.13, ``is_streaming`` from 0.5.17, time per output token from 0.5.22
LMDeploy 0.16          ``lmdeploy/metrics/loggers.py``: ``spec_decode_*`` from 0.14 on
TensorRT-LLM 1.3       ``tensorrt_llm/metrics/collector.py``, and of 1.3.0rc5, before it had drafts,
                       configuration and the model's name
TokenSpeed 0.1         ``runtime/metrics/collector.py``: the scheduler's of each data-parallel rank
=====================  ==========================================================================
"""

from __future__ import annotations

from typing import Any

import pytest

from specwatch.domain.acceptance import fixed_draft_length
from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.histogram import mean
from specwatch.domain.model import Mode, Moment
from specwatch.engines.base import Identity
from specwatch.engines.llamacpp import LLAMACPP
from specwatch.engines.sample_names import ENGINES, engine_of, mode_of
from specwatch.engines.sglang import SGLANG as SGLANG_ENGINE
from specwatch.errors import PageError, ScrapeReason
from specwatch.lab.backfill import prometheus_pages
from specwatch.rules import summary
from specwatch.scrape import engine_info, tally
from specwatch.scrape.window_builder import WindowBuilder
from tests.engines.test_versions import between, gauges, mode, totals
from tests.pages import DATA, faithful, oracle, read

SGLANG, OLD_SGLANG = faithful("sglang-0.5.23-eagle-dp2"), faithful("sglang-0.5.9-eagle")
LMDEPLOY, LMDEPLOY_OFF = faithful("lmdeploy-0.16-mtp"), faithful("lmdeploy-0.16-off")
TRTLLM, TRTLLM_OFF = faithful("tensorrt-llm-1.3-eagle3"), faithful("tensorrt-llm-1.3-off")
OLD_TRTLLM = faithful("tensorrt-llm-1.3rc5")
TOKENSPEED = faithful("tokenspeed-0.1-eagle3-dp2")


def fingerprint(page: bytes) -> str:
    return tally.fingerprint_of(read(page))


@pytest.mark.parametrize(
    "path", sorted((DATA / "pages").glob("*.prom")), ids=lambda path: path.stem
)
def test_a_page_reads_as_the_general_parser_reads_it(path: Any) -> None:
    assert read(path.read_bytes()) == oracle(path.read_text())[0]


@pytest.mark.parametrize(
    ("page", "name"),
    [
        (SGLANG, "sglang"),
        (LMDEPLOY, "lmdeploy"),
        (TRTLLM, "tensorrt_llm"),
        (OLD_TRTLLM, "tensorrt_llm"),
        (TOKENSPEED, "tokenspeed"),
        (faithful("llamacpp"), "llamacpp"),
        (faithful("vllm-0.8.3-ngram"), "vllm"),
    ],
)
def test_the_engine_of_a_page_is_known(page: bytes, name: str) -> None:
    (samples,) = tally.parts_of(read(page)).models.values()
    assert engine_of(samples).name == name


def test_sglang_counts_drafts_but_no_tokens_of_them() -> None:
    """Its acceptance rate is not known, and not made up of gauges or of generated tokens."""
    counted = totals(SGLANG)
    assert counted.drafts == 400
    assert counted.draft_tokens is counted.accepted_tokens is counted.accepted_per_position is None
    (model,) = summary.models_of(read(SGLANG), [])
    assert model.acceptance_rate is model.mean_acceptance_length is None
    assert (counted.prompt_tokens, counted.generation_tokens) == (4000, 1000)
    assert counted.requests == {"other": 10}


def test_streamed_requests_of_sglang_and_others_are_added() -> None:
    counted = totals(SGLANG)
    assert (counted.ttft.count, counted.ttft.sum) == (10, 0.875)
    assert (counted.e2e.count, counted.e2e.sum) == (10, 16.25)
    assert counted.ttft == totals(OLD_SGLANG).ttft


def test_a_latency_of_sglang_is_of_a_token_and_not_of_a_step() -> None:
    counted = totals(OLD_SGLANG)
    assert counted.tpot.bounds == ()
    assert (counted.tpot.count, mean(counted.tpot)) == (990, 0.015)
    counted = totals(SGLANG)
    assert (counted.tpot.count, counted.tpot.sum, counted.tpot.bounds[0]) == (10, 0.1875, 0.002)
    assert (counted.inter_token.count, counted.inter_token.sum) == (990, 14.85)


def test_ranks_of_sglang_have_the_same_requests_and_its_data_parallel_engines_others() -> None:
    assert gauges(SGLANG) == tally.Sampled(5, 1, 0.5, None)
    priorities = OLD_SGLANG.replace(
        b"sglang:num_running_reqs{",
        b'sglang:num_running_reqs{model_name="org/m",priority="1",dp_rank="0"} 1\n'
        b"sglang:num_running_reqs{",
    )
    assert priorities != OLD_SGLANG
    assert gauges(priorities).running == gauges(OLD_SGLANG).running == 3


@pytest.mark.parametrize(
    ("algorithm", "expected"), [("EAGLE", Mode.ON), (None, Mode.OFF), ("absent", Mode.UNKNOWN)]
)
def test_sglang_says_whether_it_speculates_before_it_counts(
    algorithm: str | None, expected: Mode
) -> None:
    info = {"version": "0.5.9", "speculative_algorithm": algorithm}
    pages = {} if algorithm == "absent" else {"/get_server_info": info}
    identity = next(engine for engine in ENGINES if engine.name == "sglang").identify(pages.get)
    assert identity == (Identity() if not pages else Identity("0.5.9", algorithm is not None))
    assert mode(OLD_SGLANG, identity.drafting) is expected
    assert mode(SGLANG, identity.drafting) is Mode.ON


def test_lmdeploy_counts_like_vllm() -> None:
    counted = totals(LMDEPLOY)
    assert (counted.drafts, counted.draft_tokens, counted.accepted_tokens) == (400, 1200, 600)
    assert counted.accepted_per_position == (350, 180, 70)
    assert (counted.generation_tokens, counted.requests["ResponseType.FINISH"]) == (1010, 10)
    assert gauges(LMDEPLOY) == tally.Sampled(3, 1, 0.25, None)
    assert fingerprint(LMDEPLOY).endswith("-3")


def test_time_per_output_token_of_lmdeploy_is_that_of_requests() -> None:
    """Its own histogram has one mean a step: 7.5 s over 400 steps, not 15 s over 1000 tokens."""
    counted = totals(LMDEPLOY)
    assert (counted.tpot.count, mean(counted.tpot)) == (1000, 0.015)
    assert counted.inter_token.sum == 15.0


def test_lmdeploy_speculates_if_its_first_step_is_a_draft() -> None:
    assert mode(LMDEPLOY) is Mode.ON
    assert mode(LMDEPLOY_OFF) is Mode.OFF
    before_any_step = LMDEPLOY_OFF.replace(b"} 1000.0", b"} 0.0")
    assert mode(before_any_step) is Mode.UNKNOWN
    older = b"".join(
        line for line in LMDEPLOY.splitlines(keepends=True) if b"spec_decode_num_d" not in line
    )
    assert mode(older) is Mode.UNKNOWN
    assert fingerprint(LMDEPLOY_OFF).endswith("-0")


def test_draft_tokens_of_tokenspeed_are_those_of_the_draft() -> None:
    """Its counter has a token of the target for each draft, too: 1600 with k = 3."""
    counted = totals(TOKENSPEED)
    assert (counted.drafts, counted.draft_tokens, counted.accepted_tokens) == (400, 1200, 600)
    assert (counted.prompt_tokens, counted.generation_tokens) == (4000, 1010)
    assert counted.requests == {"other": 10}
    assert gauges(TOKENSPEED) == tally.Sampled(3, 1, 0.25, None)
    ten_more = TOKENSPEED.replace(
        b'spec_decode_num_drafts_total{app_key="",dp_rank="0",model_name="org/m"} 250',
        b'spec_decode_num_drafts_total{app_key="",dp_rank="0",model_name="org/m"} 260',
    ).replace(
        b'spec_decode_num_draft_tokens_total{app_key="",dp_rank="0",model_name="org/m"} 1000',
        b'spec_decode_num_draft_tokens_total{app_key="",dp_rank="0",model_name="org/m"} 1040',
    )
    later = between(TOKENSPEED, ten_more).tally
    assert (later.drafts, later.draft_tokens) == (10, 30)


def test_the_time_of_a_token_of_tokenspeed_is_not_that_of_its_whole_request() -> None:
    counted = totals(TOKENSPEED)
    assert mean(counted.tpot) == 0.015625
    assert (counted.e2e.count, counted.ttft.count) == (10, 10)


def test_tokenspeed_speculates_if_it_drafts_before_its_first_request_ends() -> None:
    assert mode(TOKENSPEED) is Mode.ON
    off = b"".join(
        line for line in TOKENSPEED.splitlines(keepends=True) if b"spec_decode_" not in line
    )
    assert mode(off) is Mode.OFF
    assert mode(off.replace(b"} 1010.0", b"} 0.0")) is Mode.UNKNOWN


def test_drafts_of_tensorrt_llm_are_counted_once() -> None:
    """Its page has the tokens of iterations besides: 1500 drafted, 600 accepted."""
    counted = totals(TRTLLM)
    assert (counted.drafts, counted.draft_tokens, counted.accepted_tokens) == (400, 1190, 450)
    assert counted.accepted_per_position == (300, 150, 0)
    assert (counted.prompt_tokens, counted.generation_tokens) == (4000, 1010)
    assert counted.requests == {"stop": 4, "length": 6}
    assert (counted.tpot.count, counted.tpot.sum) == (10, 0.15)
    assert fixed_draft_length(counted) == 3
    assert gauges(TRTLLM) == tally.Sampled(3, 1, 0.25, None)


def test_a_window_of_tensorrt_llm_has_the_difference() -> None:
    later = TRTLLM.replace(b'token_position="0"} 400.0', b'token_position="0"} 410.0').replace(
        b'token_position="0"} 300.0', b'token_position="0"} 306.0'
    )
    window = between(TRTLLM, later)
    assert (window.tally.drafts, window.tally.draft_tokens) == (10, 10)
    assert (window.tally.accepted_tokens, window.tally.accepted_per_position) == (6, (6, 0, 0))
    assert (window.mode, window.restarts) == (Mode.ON, 0)


def test_the_first_draft_of_tensorrt_llm_counts_from_zero() -> None:
    first = b"".join(
        line for line in TRTLLM.splitlines(keepends=True) if b"token_position" not in line
    )
    assert totals(first).drafts is None
    window = between(first, TRTLLM)
    assert (window.tally.drafts, window.tally.accepted_tokens) == (400, 450)


def test_tensorrt_llm_without_any_accepted_token_has_accepted_none() -> None:
    rejected = b"".join(
        line for line in TRTLLM.splitlines(keepends=True) if b"decode_accepted_tokens" not in line
    )
    assert totals(rejected).accepted_tokens == 0
    assert totals(rejected).accepted_per_position == (0, 0, 0)


def test_tensorrt_llm_shows_how_it_was_launched() -> None:
    assert (mode(TRTLLM), mode(TRTLLM_OFF), mode(OLD_TRTLLM)) == (Mode.ON, Mode.OFF, Mode.UNKNOWN)
    drafting, plain = fingerprint(TRTLLM), fingerprint(TRTLLM_OFF)
    assert (drafting.partition("-")[2], plain.partition("-")[2]) == ("3", "0")
    assert drafting.partition("-")[0] == plain.partition("-")[0]
    restarted = TRTLLM.replace(b'pid="77"', b'pid="78"')
    assert fingerprint(restarted) == drafting


def test_tensorrt_llm_1_3_0rc5_names_no_model() -> None:
    watch = WindowBuilder("d", "t", max_gap=15)
    watch.observe(read(OLD_TRTLLM), Moment(0, 0))
    assert list(watch.models) == [""]


@pytest.mark.parametrize("json", [b"[]", b'[{"iter": 5, "iterLatencyMS": 8.5}]', b"[]\n"])
def test_the_json_of_tensorrt_llm_says_where_its_metrics_are(json: bytes) -> None:
    with pytest.raises(PageError, match="set metrics_path: /prometheus/metrics") as caught:
        read(json)
    assert caught.value.reason is ScrapeReason.NOT_METRICS


def test_the_version_and_models_of_sglang_are_read() -> None:
    pages = {
        "/server_info": b'{"version": "0.5.23", "speculative_algorithm": "EAGLE"}',
        "/v1/models": b'{"data": [{"id": "org/m", "owned_by": "sglang", "max_model_len": 4096}]}',
    }
    info = engine_info.ask(lambda path: pages.get(path, b""))
    assert (info.version, info.models, info.drafting) == ("0.5.23", ("org/m",), True)
    assert info.longest == {"org/m": 4096}


def test_ranks_of_one_server_are_one_server_of_a_prometheus() -> None:
    labels = {"instance": "gpu:30000", "model_name": "org/m", "engine_type": "unified"}
    servers = prometheus_pages.merged(
        prometheus_pages.servers_of(
            [({**labels, "tp_rank": rank, "dp_rank": rank}, [(60.0, "1")]) for rank in "01"]
        )
    )
    assert [server.labels for server in servers] == [(("instance", "gpu:30000"),)]


def test_no_samples_are_those_of_a_server_that_does_not_speculate() -> None:
    assert mode_of({}) is Mode.OFF


@pytest.mark.parametrize(
    ("adaptive", "algorithm", "expected"),
    [
        (True, "EAGLE", DraftLengths.ADAPTIVE_STEPS),
        (False, "EAGLE", None),
        (None, "NGRAM", DraftLengths.MATCHES),
        (False, "EAGLE_HARNESS", DraftLengths.ADAPTIVE_STEPS),
    ],
)
def test_sglang_says_whether_its_steps_are_adaptive(
    adaptive: bool | None, algorithm: str, expected: DraftLengths | None
) -> None:
    info = {"speculative_algorithm": algorithm, "speculative_adaptive": adaptive}
    identity = SGLANG_ENGINE.identify({"/server_info": info}.get)
    assert (identity.drafting, identity.draft_lengths) == (True, expected)
    ending = f"-? {expected}" if expected else "-?"
    assert tally.fingerprint_of(read(SGLANG), identity.draft_lengths).endswith(ending)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"speculative.types": "ngram-mod"}, DraftLengths.MATCHES),
        ({"speculative.types": "draft-simple"}, None),
        ({"speculative.type": "draft", "speculative.p_min": 0.75}, DraftLengths.EARLY_END),
        ({"speculative.type": "draft", "speculative.p_min": 0.0}, None),
        ([], None),
    ],
)
def test_llama_cpp_says_what_it_drafts_with(request_: Any, expected: DraftLengths | None) -> None:
    """Its newer builds no longer say whether drafts end early."""
    answers = {
        "/props": {"total_slots": 1, "default_generation_settings": {"params": request_}},
        "/slots": [{"speculative": True}],
    }
    assert LLAMACPP.identify(answers.get).draft_lengths is expected
    answers["/slots"] = [{"speculative": False}]
    assert LLAMACPP.identify(answers.get).draft_lengths is None


def test_what_a_server_says_of_its_drafts_ends_with_its_process() -> None:
    watch = WindowBuilder("d", "t", max_gap=15)
    watch.observe(read(SGLANG), Moment(0, 0))
    watch.draft_lengths = DraftLengths.ADAPTIVE_STEPS
    watch.observe(read(SGLANG), Moment(5, 5))
    batch = watch.close().batch
    assert batch is not None
    assert str(batch.windows[0].environment.fingerprint).endswith("-? adaptive_steps")
    watch.observe(read(SGLANG.replace(b"} 4", b"} 3").replace(b"} 1000", b"} 10")), Moment(65, 65))
    assert watch.draft_lengths is None
