"""What ``specwatch bench`` measures, beside ``vllm bench serve`` and AIPerf on the same server.

All send the same prompts in a closed loop to one real vLLM, in turn, several times; the order
changes from round to round. The ratio of two is that of the means of their logarithms, its interval
Student's (95 %): where 1 lies in it they agree within what repeating each shows as noise. Needs the
lab (``make lab``).
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from specwatch.lab.loadtest.prompts import PROMPTS
from tests.benchmarks.figure import Figure
from tests.lab import vllm_install as lab
from tests.lab.load_tools import OFFLINE, aiperf_profile, hub_with, vllm_bench
from tests.lab.load_tools import run as run_tool
from tests.lab.vllm_server import VllmServer

_ROUNDS = 5
_T = 2.31
"""Student's t of two times four degrees of freedom, 95 %."""
_CONCURRENCY = 2
_REQUESTS = 48
_TOKENS = 48
_SECONDS = 10
"""Of specwatch, in which it sends about as many requests."""
_MOST_SECONDS = 300


class _Run(NamedTuple):
    ttft: float
    """Median, in seconds."""
    tpot: float
    """Median of the requests' means, in seconds."""
    throughput: float
    """Tokens a second."""


def run() -> list[Figure]:
    """Each figure of specwatch's beside that of both others, with the interval of their ratio."""
    if not (lab.is_installed() and lab.has_aiperf()):
        raise RuntimeError(f"no vLLM and AIPerf in {lab.vllm_folder()}: 'make lab' installs them")
    models = lab.tiny_models(lab.vllm_folder())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with VllmServer(
            lab.vllm_folder(), models, folder / "server.log", speculation="draft-good"
        ) as server:
            server.start()
            server.wait_healthy()
            clients = _clients(server.url, models / "target", folder)
            for measure in clients.values():  # the first of each warms up what it touches
                measure()
            runs = []
            for at in range(_ROUNDS):
                order = [*clients][at % 3 :] + [*clients][: at % 3]
                runs.append({name: clients[name]() for name in order})
                print(f"  round {at + 1} of {_ROUNDS}: {runs[-1]}", file=sys.stderr, flush=True)
    return [figure for name in _UNITS for figure in _compared(name, runs)]


_UNITS = {"ttft": "s", "tpot": "s", "throughput": "tokens/s"}


def _compared(name: str, runs: list[dict[str, _Run]]) -> list[Figure]:
    found = {client: [math.log(getattr(run[client], name)) for run in runs] for client in runs[0]}
    figures = []
    ours = found.pop("specwatch")
    for client, theirs in found.items():
        middle = statistics.mean(ours) - statistics.mean(theirs)
        error = _T * math.sqrt((statistics.variance(ours) + statistics.variance(theirs)) / _ROUNDS)
        figures.append(
            Figure(
                f"bench: {name}, {_CONCURRENCY} streams; peer: {client}",
                math.exp(statistics.mean(ours)),
                _UNITS[name],
                math.exp(statistics.mean(theirs)),
            )
        )
        for label, at in (("from", middle - error), ("to", middle + error)):
            figures.append(Figure(f"  more than {client}, {label}", 100 * math.expm1(at), "%"))
        for label, of in (("specwatch", ours), (client, theirs)):
            spread = 100 * math.expm1(statistics.stdev(of))
            figures.append(Figure(f"  {label} from run to run", spread, "%"))
    return figures


def _clients(url: str, tokenizer: Path, folder: Path) -> dict[str, Callable[[], _Run]]:
    prompts = folder / "sharegpt.json"
    talks = [[{"from": "human", "value": each}, {"from": "gpt", "value": each}] for each in PROMPTS]
    prompts.write_text(json.dumps([{"conversations": talk} for talk in talks]))
    texts = folder / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": each}) + "\n" for each in PROMPTS))
    hub = hub_with(tokenizer, folder)
    return {
        "specwatch": lambda: _specwatch(url, prompts),
        "vllm bench serve": lambda: _vllm(url, prompts, tokenizer, folder),
        "AIPerf": lambda: _aiperf(url, texts, hub, folder),
    }


def _specwatch(url: str, prompts: Path) -> _Run:
    command = [
        sys.executable,
        "-m",
        "specwatch",
        "bench",
        "--target",
        url,
        "--dry-run",
        "--json",
        "--dataset",
        str(prompts),
        "--concurrency",
        str(_CONCURRENCY),
        "--warm-up",
        "1s",
        "--duration",
        f"{_SECONDS}s",
        "--max-tokens",
        str(_TOKENS),
        "--temperature",
        "0",
    ]
    printed = run_tool(command, {"PYTHONPATH": str(lab.CHECKOUT)}, _MOST_SECONDS)
    (level,) = json.loads(printed)["levels"]
    return _Run(level["ttft"]["p50"], level["tpot"]["p50"], level["throughput"])


def _vllm(url: str, prompts: Path, tokenizer: Path, folder: Path) -> _Run:
    result = folder / "vllm.json"
    result.unlink(missing_ok=True)
    command = vllm_bench(
        lab.vllm_folder(),
        url,
        tokenizer,
        requests=_REQUESTS,
        concurrency=_CONCURRENCY,
        temperature=0,
    )
    command += [
        "--dataset-name",
        "sharegpt",
        "--dataset-path",
        str(prompts),
        "--sharegpt-output-len",
        str(_TOKENS),
        "--num-warmups",
        "4",
        "--percentile-metrics",
        "ttft,tpot",
        "--metric-percentiles",
        "50",
        "--save-result",
        "--result-dir",
        str(folder),
        "--result-filename",
        result.name,
    ]
    run_tool(command, OFFLINE, _MOST_SECONDS)
    found = json.loads(result.read_text())
    return _Run(found["p50_ttft_ms"] / 1e3, found["p50_tpot_ms"] / 1e3, found["output_throughput"])


def _aiperf(url: str, prompts: Path, hub: Path, folder: Path) -> _Run:
    artifacts = folder / "aiperf"
    shutil.rmtree(artifacts, ignore_errors=True)
    command = aiperf_profile(
        lab.aiperf_folder(),
        url,
        artifacts,
        requests=_REQUESTS,
        concurrency=_CONCURRENCY,
        temperature=0,
    )
    command += [
        "--input-file",
        str(prompts),
        "--custom-dataset-type",
        "single_turn",
        "--extra-inputs",
        f"max_tokens:{_TOKENS}",
        "--warmup-request-count",
        "4",
    ]
    run_tool(command, {**OFFLINE, "HF_HOME": str(hub)}, _MOST_SECONDS)
    found = json.loads((artifacts / "profile_export_aiperf.json").read_text())
    return _Run(
        found["time_to_first_token"]["p50"] / 1e3,
        found["inter_token_latency"]["p50"] / 1e3,
        found["output_token_throughput"]["avg"],
    )
