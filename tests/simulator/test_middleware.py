"""What middleware gets from the simulated vLLM is what the real one has for it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
import requests
from prometheus_client import CollectorRegistry, Counter
from starlette.types import ASGIApp, Receive, Scope, Send

from specwatch.lab.simulator.costs import SimulatedCosts
from specwatch.lab.simulator.server import SimulatedServer
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.lab.simulator.workload import SimulatedProfile, SimulatedTraffic
from tests.hostile import wait_for
from tests.simulator.client import page, total

SETTINGS = SimulatedSettings(
    model="Org/Model",
    served_model_names=("tiny", "other"),
    port=0,
    speculation=SimulatedSpeculation(3, "ngram"),
    record="summary",
    costs=SimulatedCosts().scaled(0.1),
    middleware=(f"{__name__}.Registering",),
)
TRAFFIC = SimulatedTraffic(
    rate=40.0, output_tokens=10, temperatures=((0.0, 0.5), (0.6, 0.3), (1.2, 0.2))
)
TWO_SECONDS = SimulatedProfile(((0.0, 1.0), (2.0, 1.0), (2.001, 0.0)))


class Registering:
    """Registers a counter where it is told, and keeps the state of the application it saw."""

    state: Any = None

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        self._counter = Counter("specwatch_met", "Requests met.", ["path"], registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            Registering.state = scope["app"].state
            self._counter.labels(scope["path"]).inc()
        await self._app(scope, receive, send)


def state(**changes: Any) -> Any:
    """The state that middleware finds with these settings."""
    with SimulatedServer(dataclasses.replace(SETTINGS, **changes)) as server:
        requests.get(f"{server.url}/health", timeout=10)
    return Registering.state


def test_the_state_has_what_vllm_has_there() -> None:
    app_state = state(default_temperature=0.6, force_usage=True, timings=True)
    chat, completion = app_state.openai_serving_chat, app_state.openai_serving_completion
    for serving in (chat, completion):
        assert serving.default_sampling_params == {"temperature": 0.6}
        assert serving.enable_force_include_usage
    paths = app_state.openai_serving_models.base_model_paths
    assert [(path.name, path.model_path) for path in paths] == [
        ("tiny", "Org/Model"),
        ("other", "Org/Model"),
    ]
    assert app_state.vllm_config.speculative_config.num_speculative_tokens == 3
    observability = app_state.vllm_config.observability_config
    assert observability.per_request_spec_decode_metrics == "summary"
    arguments = app_state.args
    assert (arguments.model, arguments.served_model_name) == ("Org/Model", ["tiny", "other"])
    assert arguments.per_request_spec_decode_metrics == "summary"
    assert arguments.enable_force_include_usage
    assert arguments.enable_per_request_metrics
    assert arguments.speculative_config["method"] == "ngram"


def test_without_defaults_and_speculation_the_state_says_so() -> None:
    app_state = state(served_model_names=(), speculation=None, record="none")
    assert app_state.openai_serving_chat.default_sampling_params == {}
    assert app_state.vllm_config.speculative_config is None
    assert app_state.vllm_config.observability_config.per_request_spec_decode_metrics == "none"
    assert app_state.args.served_model_name is None
    assert [path.name for path in app_state.openai_serving_models.base_model_paths] == ["Org/Model"]


@pytest.mark.parametrize(("version", "forces"), [("0.8.5", False), ("0.10.2", True)])
def test_older_versions_have_less(version: str, forces: bool) -> None:
    app_state = state(engine_version=version, record="none")
    assert not hasattr(app_state, "args")
    assert not hasattr(
        app_state.vllm_config.observability_config, "per_request_spec_decode_metrics"
    )
    assert app_state.vllm_config.speculative_config.num_speculative_tokens == 3
    assert hasattr(app_state.openai_serving_chat, "enable_force_include_usage") is forces


def test_a_restart_without_speculation_shows_in_the_state() -> None:
    with SimulatedServer(SETTINGS) as server:
        server.restart(speculation=False)
        requests.get(f"{server.url}/health", timeout=10)
    assert Registering.state.vllm_config.speculative_config is None
    assert Registering.state.args.per_request_spec_decode_metrics == "none"


def test_what_middleware_counted_ends_with_the_process() -> None:
    """Its counters are in that process: a restart begins them anew, as those of the engine."""
    health = 'specwatch_met_total{path="/health"}'
    with SimulatedServer(SETTINGS) as server:
        for _ in range(3):
            requests.get(f"{server.url}/health", timeout=10)
        assert page(server)[health] == 3
        server.restart()
        assert health not in page(server)
        requests.get(f"{server.url}/health", timeout=10)
        assert page(server)[health] == 1


def test_built_in_traffic_passes_middleware() -> None:
    met = 'specwatch_met_total{path="/v1/chat/completions"}'
    with SimulatedServer(dataclasses.replace(SETTINGS, traffic=TRAFFIC)) as server:
        wait_for(lambda: page(server).get(met, 0) >= 10)
        seen = page(server)
        finished = total(server, "vllm:request_success_total")
        assert 0 < finished <= page(server)[met]
        assert not seen.get('http_requests_total{handler="/v1/chat/completions",status="4xx"}')


@pytest.mark.parametrize("concurrency", [1, 4])
def test_built_in_traffic_in_a_closed_loop_keeps_that_many_in_flight(concurrency: int) -> None:
    traffic = dataclasses.replace(TRAFFIC, rate=0.0, concurrency=concurrency, output_tokens=200)
    settings = dataclasses.replace(SETTINGS, traffic=traffic, api_keys=("key",))
    with SimulatedServer(settings) as server:
        wait_for(lambda: server.engine.running == concurrency)
        wait_for(lambda: total(server, "vllm:request_success_total") > concurrency)
        assert server.engine.running + server.engine.waiting <= concurrency


def test_the_tap_counts_built_in_traffic_by_temperature() -> None:
    """Its counters add up to those of the engine, when both have come to rest."""
    settings = dataclasses.replace(
        SETTINGS,
        middleware=("specwatch_tap.Tap",),
        traffic=dataclasses.replace(TRAFFIC, rate_profile=TWO_SECONDS),
        time_scale=4.0,
    )
    with SimulatedServer(settings) as server:
        wait_for(lambda: total(server, "vllm:request_success_total") > 20)
        wait_for(lambda: server.engine.now > 2.0)
        wait_for(lambda: (counts := both(page(server)))[0] == counts[1] and all(counts[0]))
        samples = page(server)
        labels = {
            name.partition('temperature="')[2].rstrip('"}')
            for name in samples
            if name.startswith("specwatch_drafts_total")
        }
        assert labels == {"0", "(0.3,0.7]", ">1"}
        assert 'specwatch_launch_total{setting="matches"}' in samples


def both(samples: Mapping[str, float]) -> tuple[list[float], list[float]]:
    """What the tap and the engine have counted: requests, drafts, draft and accepted tokens."""
    names = ("drafts", "draft_tokens", "accepted_tokens")
    ours = ["specwatch_requests", *(f"specwatch_{name}" for name in names)]
    theirs = ["vllm:request_success", *(f"vllm:spec_decode_num_{name}" for name in names)]
    sums: defaultdict[str, float] = defaultdict(float)
    for name, value in samples.items():
        sums[name.partition("{")[0]] += value
    return [sums[f"{name}_total"] for name in ours], [sums[f"{name}_total"] for name in theirs]


def test_stopping_under_load_ends_at_once_each_time() -> None:
    """A cancellation that comes together with news of tokens must not be lost."""
    traffic = dataclasses.replace(TRAFFIC, rate=100.0)
    with SimulatedServer(dataclasses.replace(SETTINGS, traffic=traffic)) as server:
        for _ in range(4):
            wait_for(lambda: server.engine.running > 0)
            server.restart()  # raises RuntimeError if it does not end
