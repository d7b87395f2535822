"""What vLLM leaves for its middleware in the state of its application."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from starlette.datastructures import State

from specwatch.simulator.runtime import SimulatedRuntime


def fill_state(state: State, runtime: SimulatedRuntime) -> None:
    """Set in ``state`` what the simulated version of vLLM has there of use to middleware."""
    settings, speculation = runtime.settings, runtime.engine.speculation
    level = settings.record if speculation is not None else "none"
    config = None
    if speculation is not None:
        config = {
            "method": speculation.method,
            "model": speculation.model,
            "num_speculative_tokens": speculation.k,
        }
    sampling: dict[str, Any] = {}
    if settings.default_temperature != 1.0:  # vLLM keeps what differs from its own defaults
        sampling["temperature"] = settings.default_temperature
    serving: dict[str, Any] = {"default_sampling_params": sampling}
    if settings.engine_version != "0.8.5":
        serving["enable_force_include_usage"] = settings.force_usage
    state.openai_serving_chat = SimpleNamespace(**serving)
    state.openai_serving_completion = SimpleNamespace(**serving)
    state.openai_serving_models = SimpleNamespace(
        base_model_paths=[
            SimpleNamespace(name=name, model_path=settings.model) for name in settings.served
        ]
    )
    observability = {"per_request_spec_decode_metrics": level} if settings.has_records else {}
    state.vllm_config = SimpleNamespace(
        speculative_config=None if config is None else SimpleNamespace(**config),
        observability_config=SimpleNamespace(**observability),
    )
    if settings.has_records:
        state.args = SimpleNamespace(
            model=settings.model,
            served_model_name=list(settings.served_model_names) or None,
            enable_force_include_usage=settings.force_usage,
            enable_per_request_metrics=settings.timings,
            per_request_spec_decode_metrics=level,
            speculative_config=config,
        )
