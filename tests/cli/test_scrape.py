"""``specwatch scrape``."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import pages
from tests.cli.conftest import Run
from tests.rules.test_summary import KEYS
from tests.simulated_llama import MODEL, SimulatedLlama
from tests.web.statuses import HOSTILE, Surface

CAPTURE = pages.DATA / "vllm-0.32-draft-k4.2.prom"


def test_a_saved_page_as_json_is_the_contract(run: Run) -> None:
    done = run("scrape", CAPTURE, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert list(answer) == ["source", "models"]
    assert answer["source"] == str(CAPTURE)
    (model,) = answer["models"]
    assert list(model) == KEYS
    assert model["accepted_tokens"] == 2940


@pytest.mark.parametrize("source", ["file", "-", "URL", "URL/", "URL/metrics"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_page_is_read_packed_or_not_from_anywhere(
    run: Run, tmp_path: Path, vllm: str, pack: Callable[[bytes], bytes], source: str
) -> None:
    """The content decides, not the name of the file."""
    data = pack(CAPTURE.read_bytes())
    file = tmp_path / "page"
    file.write_bytes(data)
    source = str(file) if source == "file" else source.replace("URL", vllm)
    done = run("scrape", source, "--json", stdin=data)
    assert done.exit_code == 0
    answer = json.loads(done.stdout)
    assert answer["source"] == source
    assert answer["models"][0]["drafts"] == 1238


def test_what_people_see_fits_eighty_columns_and_has_no_escapes(run: Run) -> None:
    done = run("scrape", CAPTURE)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines() == [
        "tiny",
        "speculation on, 1 engine, 0 running, 0 waiting, KV cache 0.0%, 0 preemptions",
        "acceptance rate 59.4% (2,940 of 4,952 draft tokens), mean acceptance length 3.37",
        "accepted      drafts",
        "0 of 4         23.8%  " + "█" * 21,
        "1 of 4         13.2%  " + "█" * 12,
        "2 of 4          9.5%  " + "█" * 8,
        "3 of 4          8.8%  " + "█" * 8,
        "4 of 4         44.7%  " + "█" * 40,
        "latency      count     mean      p50      p90      p95      p99",
        "TTFT            78  55.3 ms   ~52 ms  ~100 ms  ~180 ms  ~240 ms",
        "TPOT            78  7.55 ms  ~5.9 ms   ~15 ms   ~20 ms   ~24 ms",
        "inter-token  1,238  22.3 ms   ~19 ms   ~39 ms   ~47 ms   ~69 ms",
    ]


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        (
            "pages/llamacpp",
            [
                "(unnamed model)\nspeculation unknown, 1 engine, 2 running, 1 waiting",
                "It is not known whether the server speculates. llama-server tells it at",
            ],
        ),
        (
            "pages/vllm-0.8.2-v0-speculation",
            [
                "facebook/opt-125m",
                "acceptance rate 62.5%",
                "TTFT             4   3.04 s  ~60 ms  > 10 s",
            ],
        ),
        ("vllm-0.32-spec-off.2", ["speculation off"]),
        (
            "pages/sglang-0.5.23-eagle-dp2",
            [
                "org/m\nspeculation on, 2 engines, 5 running, 1 waiting, KV cache 50.0%\n",
                "400 drafts; the engine does not count their tokens, so acceptance is not known\n",
            ],
        ),
        ("pages/lmdeploy-0.16-mtp", ["acceptance rate 50.0% (600 of 1,200 draft tokens)"]),
        ("pages/lmdeploy-0.16-off", ["speculation off, 1 engine"]),
        ("pages/tensorrt-llm-1.3-eagle3", ["acceptance rate 37.8% (450 of 1,190 draft tokens)"]),
        ("pages/tensorrt-llm-1.3-off", ["speculation off, 1 engine"]),
        ("pages/tensorrt-llm-1.3rc5", ["(unnamed model)\nspeculation unknown"]),
    ],
)
def test_other_engines_show_what_they_say_and_nothing_else(
    run: Run, page: str, texts: list[str]
) -> None:
    done = run("scrape", pages.DATA / f"{page}.prom")
    assert done.exit_code == 0
    for text in texts:
        assert text in done.stdout
    assert "None" not in done.stdout
    assert "speculation off" not in done.stdout or "accept" not in done.stdout


@pytest.mark.parametrize(
    ("k", "slots", "mode"), [(4, True, "on"), (0, True, "off"), (4, False, "unknown")]
)
def test_a_llama_server_is_asked_what_its_page_does_not_tell(
    run: Run, k: int, slots: bool, mode: str
) -> None:
    with SimulatedLlama(draft_tokens=k, slots=slots) as server:
        done = run("scrape", server.url, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    (model,) = json.loads(done.stdout)["models"]
    assert (model["model_name"], model["speculation"]) == (MODEL, mode)


def test_a_page_with_a_tap_shows_its_buckets_in_eighty_columns(run: Run) -> None:
    done = run("scrape", pages.DATA / "pages" / "vllm-0.32-tap.prom")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines[-11:])) <= 80
    assert lines[-11:] == [
        "tap: covers 80.4% of drafts",
        "  not covered: 3 requests, more than one completion was asked for, which carry",
        "    no record",
        "  not covered: 1 request, the client went away before the end",
        "temp      share drafts accept length P10/50/90    TTFT TTFT p99    TPOT TPOT p99",
        "0           36%    359  75.6%   4.03  58/77/90  ~92 ms  ~250 ms 5.83 ms   ~12 ms",
        "(0,0.3]      9%     89  55.9%   3.24  34/50/86 ~100 ms  ~250 ms   ~5 ms  14.8 ms",
        "(0.3,0.7]   16%    155  36.6%   2.46  21/35/57 ~130 ms  ~250 ms ~7.3 ms   ~20 ms",
        "(0.7,1]     19%    188  19.0%   1.76   9/18/27  ~88 ms  ~250 ms 12.8 ms   ~25 ms",
        ">1           8%     84   3.9%   1.15     1/3/8 ~150 ms  ~250 ms  ~18 ms   ~25 ms",
        "unknown     12%    120  43.8%   2.75  22/46/62 ~130 ms  ~250 ms ~7.7 ms  14.9 ms",
    ]


def test_derived_acceptance_is_explained(run: Run) -> None:
    request = {"model_name": "m", "temperature": "0", "accepted": [1, 4], "method": "derived"}
    page = pages.speculation(2, [2, 1, 1, 1]) + pages.tap(request)
    done = run("scrape", "-", stdin=page.encode())
    assert (
        "  of 100% of requests the acceptance is derived: the tokens of each streamed\n"
        "    step, as the engine keeps no record\n"
    ) in done.stdout


def test_a_page_of_a_proxy_exits_with_1_and_the_remedy(run: Run) -> None:
    done = run("scrape", pages.DATA / "pages" / "tap-proxy.prom")
    assert done.exit_code == 1
    assert "a page of a `specwatch tap proxy` alone" in done.stderr


def test_several_models_are_shown_one_after_the_other(run: Run) -> None:
    page = pages.page(
        pages.gauge("vllm:num_requests_running", 1, model_name="b"),
        pages.gauge("vllm:num_requests_waiting", 0, model_name="a"),
    )
    lines = run("scrape", "-", stdin=page.encode()).stdout.splitlines()
    assert [lines[0], lines[2], lines[3]] == ["a", "", "b"]


def test_a_hostile_name_neither_commands_nor_fills_the_terminal(run: Run) -> None:
    name = HOSTILE[:2000]
    page = pages.page(pages.gauge("vllm:num_requests_running", 1, model_name=name))
    done = run("scrape", "-", stdin=page.encode())
    assert done.exit_code == 0
    assert done.stdout.startswith(r"[red]x[/red] \x1b[31m")
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 100
    printed = run("scrape", "-", "--json", stdin=page.encode()).stdout
    assert printed.replace("\n", "").isprintable()
    (model,) = json.loads(printed)["models"]
    assert model["model_name"] == name


def test_unusable_metrics_are_reported_on_standard_error(run: Run) -> None:
    page = pages.page(
        pages.gauge("vllm:num_requests_running", 1, model_name="m"),
        pages.histogram(
            "vllm:time_to_first_token_seconds", (1.0, 2.0), (5, -3, 1), 1.0, model_name="m"
        ),
    )
    done = run("scrape", "-", "--json", stdin=page.encode())
    assert done.exit_code == 0
    assert json.loads(done.stdout)["models"][0]["ttft"] is None
    assert done.stderr.startswith("left out: the buckets of ttft")


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (b"", "empty"),
        (b"<html></html>\n", "metrics page"),
        (b"up 1\n", "not of vLLM, llama.cpp"),
        (b"process_start_time_seconds 1\n", "not of vLLM, llama.cpp"),
        (CAPTURE.read_bytes()[:-10], "middle of a line"),
        (gzip.compress(CAPTURE.read_bytes(), mtime=0)[:-100], "is incomplete"),
        (gzip.compress(CAPTURE.read_bytes(), mtime=0)[:50] + b"x" * 500, "gzip"),
        (pages.speculation(float("nan"), [1]).encode(), "nan"),
        (b"\xff\xfe\n", "UTF-8"),
        (gzip.compress(bytes(17 << 20), mtime=0), "longer than 16777216 bytes"),
    ],
)
def test_a_wrong_page_exits_with_1(run: Run, page: bytes, words: str) -> None:
    done = run("scrape", "-", stdin=page)
    assert (done.exit_code, done.stdout) == (1, "")
    assert words in done.stderr


def test_an_unreadable_source_exits_with_1(run: Run, tmp_path: Path, surface: Surface) -> None:
    where = "give a URL (http://...), a file or -"
    for source, problem in (
        (tmp_path / "absent", where),
        (tmp_path, where),
        ("a\0b", where),
        ("http://127.0.0.1:1", "nothing listens"),
        (surface.url, "not of vLLM, llama.cpp"),  # our own page is that of no engine
    ):
        done = run("scrape", source)
        assert done.exit_code == 1
        assert problem in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["http://"],
        ["ftp://host/page"],
        ["http://user:secret@host"],
        ["-", "--timeout", "5"],
        ["-", "--timeout", "0s"],
    ],
)
def test_usage_errors(run: Run, words: list[str]) -> None:
    done = run("scrape", *words)
    assert done.exit_code == 2
    assert "secret" not in done.output


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_encoding_of_the_terminal_makes_it_fail(run: Run, encoding: str) -> None:
    page = pages.page(
        pages.gauge("vllm:num_requests_running", 1, model_name="模型"),
    ) + pages.speculation(4, [2], model="模型")
    done, as_json = (
        run("scrape", "-", *more, stdin=page.encode(), charset=encoding)
        for more in ([], ["--json"])
    )
    assert (done.exit_code, done.stderr_bytes) == (0, b"")
    unicode = encoding == "utf-8"
    assert ("模型".encode() in done.stdout_bytes) is unicode
    assert ("█".encode() in done.stdout_bytes) is unicode
    assert (b"\\u6a21\\u578b" in done.stdout_bytes) is not unicode
    # JSON is UTF-8 whatever the terminal is.
    assert json.loads(as_json.stdout_bytes.decode("utf-8"))["models"][0]["model_name"] == "模型"


def test_a_file_name_that_is_not_utf_8_is_valid_json(run: Run, tmp_path: Path) -> None:
    source = tmp_path / os.fsdecode(b"\xff.prom")
    source.write_bytes(CAPTURE.read_bytes())
    done = run("scrape", source, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["source"].endswith("/\ufffd.prom")


def test_a_page_whose_drafts_vary_in_length_says_so(run: Run) -> None:
    """As its tap shows the launch, or by what is counted."""
    page = CAPTURE.read_bytes()
    launched = page + b'specwatch_launch_total{setting="adaptive_verification"} 0.0\n'
    for text, cause, words in (
        (launched, "adaptive_verification", "drafts vary in length by adaptive verification:"),
        (
            page.replace(b" 4952.0", b" 3100.0"),
            "unexplained",
            "drafts vary in length by the counts",
        ),
        (page, None, ""),
    ):
        done = run("scrape", "-", stdin=text)
        assert words in " ".join(done.stdout.split())
        assert (cause is None) == ("drafts vary" not in done.stdout)
        (model,) = json.loads(run("scrape", "-", "--json", stdin=text).stdout)["models"]
        assert (model["speculation"], model["draft_lengths"]) == ("on", cause)


def test_a_server_that_only_prefills_says_so(run: Run) -> None:
    page = CAPTURE.read_bytes() + b'specwatch_launch_total{setting="kv_producer"} 0.0\n'
    done = run("scrape", "-", stdin=page)
    assert "speculation prefill" in done.stdout
    assert "not judged: the server only prefills, for others that decode" in done.stdout
    (model,) = json.loads(run("scrape", "-", "--json", stdin=page).stdout)["models"]
    assert model["speculation"] == "prefill"


@pytest.mark.parametrize("engine", ["vllm", "ray_vllm", "sglang"])
@pytest.mark.parametrize("separator", [":", "_"])
def test_names_that_others_have_rewritten_are_read(run: Run, engine: str, separator: str) -> None:
    """Ray before 2.53, gateways and collectors write them so."""
    name = f"{engine}{separator}"
    page = pages.page(
        pages.gauge(f"{name}num_running_reqs", 2, model_name="m"),
        pages.gauge(f"{name}num_requests_running", 2, model_name="m"),
    )
    assert "2 running" in run("scrape", "-", stdin=page.encode()).stdout


@pytest.mark.parametrize("label", ["instance", "replica", "stage", "worker_addr", "model"])
def test_a_page_that_merges_servers_is_refused_by_the_label(run: Run, label: str) -> None:
    page = pages.page(
        pages.gauge("vllm:num_requests_running", 1, model_name="m", **{label: "one"}),
        pages.gauge("vllm:num_requests_running", 2, model_name="m", **{label: "two"}),
    )
    done = run("scrape", "-", stdin=page.encode())
    assert done.exit_code == 1
    assert f"the label {label} is 'one' and 'two'; make each of them a target" in done.stderr


def test_what_a_start_measured_does_not_make_another_server(run: Run) -> None:
    """Two processes of one server in multi-process mode, one after the other."""
    configurations = [
        pages.gauge(
            "vllm:cache_config_info",
            1,
            model_name="m",
            block_size="16",
            kv_cache_max_concurrency=found,
            num_gpu_blocks=found,
        )
        for found in ("16.0", "32.0")
    ]
    page = pages.page(pages.gauge("vllm:num_requests_running", 1, model_name="m"), *configurations)
    assert run("scrape", "-", stdin=page.encode()).exit_code == 0


@pytest.mark.parametrize("servers", [1, 2])
def test_a_routers_page_is_recognised(run: Run, servers: int) -> None:
    page = pages.page(
        *(
            pages.gauge("vllm:num_requests_running", 3, server=f"http://10.0.0.{n}:8000")
            for n in range(servers)
        )
    )
    done = run("scrape", "-", stdin=page.encode())
    assert done.exit_code == 1
    assert "this is a router's page" in done.stderr


def test_one_name_in_two_spellings_is_not_counted_twice(run: Run) -> None:
    page = pages.page(
        pages.gauge("vllm:num_requests_running", 1, model_name="m"),
        pages.gauge("vllm_num_requests_running", 1, model_name="m"),
    )
    assert "occurs twice" in run("scrape", "-", stdin=page.encode()).stderr


def test_a_vllm_that_shows_nothing_is_told_why(run: Run) -> None:
    page = '# TYPE http_requests_total counter\nhttp_requests_total{status="2xx"} 12\n'
    assert "--disable-log-stats" in run("scrape", "-", stdin=page.encode()).stderr
