"""The facts of vLLM, from application states as its releases have them."""

from __future__ import annotations

from types import SimpleNamespace as Thing
from typing import Any

import pytest

from specwatch_tap.server_facts import Endpoint, InsideVllm, ServerFacts
from tests.tap.exchanges import scope

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS


def state(**members: Any) -> Thing:
    """What all releases have, on a server that speculates with k = 4 and two served names."""
    models = Thing(base_model_paths=[Thing(name="tiny"), Thing(name="other")])
    config = Thing(speculative_config=Thing(num_speculative_tokens=4))
    config.observability_config = Thing()
    handler = Thing(default_sampling_params={})
    usual = {
        "vllm_config": config,
        "openai_serving_models": models,
        "openai_serving_chat": handler,
        "openai_serving_completion": handler,
    }
    return Thing(**{**usual, **members})


def facts(of: Any, endpoint: Endpoint = CHAT) -> ServerFacts:
    """What is read of an application with the state."""
    return InsideVllm().facts(scope(app=Thing(state=of)), endpoint)


def speculating(level: str | None, tokens: Any = 4) -> Thing:
    """A configuration of 0.29 and later."""
    return Thing(
        speculative_config=Thing(num_speculative_tokens=tokens),
        observability_config=Thing(per_request_spec_decode_metrics=level),
    )


def test_0_8_has_no_arguments_and_no_records() -> None:
    expected = ServerFacts("tiny", default_temperature=1.0, draft_tokens=4, aliases=("other",))
    assert facts(state()) == facts(state(), COMPLETIONS) == expected


def test_since_0_29_records_are_kept_where_the_flag_says_so() -> None:
    expected = {"summary": True, "detailed": True, "none": False, None: False}
    assert expected == {
        level: facts(state(vllm_config=speculating(level))).keeps_records for level in expected
    }


def test_a_server_without_speculation_drafts_nothing() -> None:
    config = Thing(speculative_config=None, observability_config=Thing())
    assert facts(state(vllm_config=config)).draft_tokens == 0


@pytest.mark.parametrize("tokens", [None, "4"])
def test_a_k_that_is_not_a_number_is_unknown(tokens: Any) -> None:
    assert facts(state(vllm_config=speculating("summary", tokens))).draft_tokens is None


DEFAULTS: dict[str, tuple[Any, float | None]] = {
    "the model's own": ({"temperature": 0.6, "top_p": 0.9}, 0.6),
    "greedy": ({"temperature": 0}, 0.0),
    "vLLM's": ({"top_p": 0.9}, 1.0),
    "vLLM's, in 0.11 without any": (None, 1.0),
    "one that is no number": ({"temperature": "hot"}, None),
}


def test_the_default_temperature() -> None:
    for title, (params, expected) in DEFAULTS.items():
        handler = Thing(default_sampling_params=params)
        learned = facts(state(openai_serving_chat=handler, anthropic_serving_messages=handler))
        assert learned.default_temperature == expected, title


def test_each_endpoint_has_a_default_of_its_own() -> None:
    members = {
        Endpoint.CHAT: "openai_serving_chat",
        Endpoint.COMPLETIONS: "openai_serving_completion",
        Endpoint.RESPONSES: "openai_serving_responses",
        Endpoint.MESSAGES: "anthropic_serving_messages",
    }
    of = state(
        **{
            name: Thing(default_sampling_params={"temperature": index / 10})
            for index, name in enumerate(members.values())
        }
    )
    vllm, request = InsideVllm(), scope(app=Thing(state=of))
    for _ in range(2):
        for index, endpoint in enumerate(members):
            assert vllm.facts(request, endpoint).default_temperature == index / 10


@pytest.mark.parametrize("missing", ["openai_serving_chat", "openai_serving_responses"])
def test_without_a_handler_the_default_is_not_known(missing: str) -> None:
    endpoint = CHAT if missing.endswith("chat") else Endpoint.RESPONSES
    assert facts(state(**{missing: None}), endpoint).default_temperature is None
    assert facts(state(), Endpoint.RESPONSES).default_temperature is None
    assert facts(state(), Endpoint.OTHER) == ServerFacts("tiny", draft_tokens=4, aliases=("other",))


def test_forced_usage_stands_on_the_handler_since_0_9() -> None:
    handler = Thing(default_sampling_params={}, enable_force_include_usage=True)
    app_state = state(openai_serving_chat=handler, args=Thing(enable_force_include_usage=False))
    assert facts(app_state).forces_usage
    assert not facts(app_state, COMPLETIONS).forces_usage


def test_forced_usage_stands_in_the_arguments_since_0_20() -> None:
    assert facts(state(args=Thing(enable_force_include_usage=True))).forces_usage
    assert not facts(state(args=Thing())).forces_usage


@pytest.mark.parametrize(
    "request_",
    [{}, {"app": None}, {"app": Thing()}, {"app": Thing(state=Thing())}],
    ids=["no application", "none", "no state", "an empty state"],
)
def test_without_the_state_of_vllm_all_facts_are_unknown(request_: dict[str, Any]) -> None:
    assert InsideVllm().facts(scope(**request_), CHAT) == ServerFacts("")


def test_a_real_state_of_starlette_is_read() -> None:
    from starlette.applications import Starlette

    app = Starlette()
    for name, value in vars(state(vllm_config=speculating("summary"))).items():
        setattr(app.state, name, value)
    assert InsideVllm().facts({"app": app}, CHAT) == ServerFacts(
        "tiny",
        default_temperature=1.0,
        draft_tokens=4,
        keeps_records=True,
        aliases=("other",),
    )


def test_a_model_without_a_name_has_none() -> None:
    assert facts(state(openai_serving_models=Thing(base_model_paths=[]))).model_name == ""
    assert facts(state(openai_serving_models=None)).model_name == ""


LAUNCHES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"enable_adaptive_verification": True, "method": "dspark"}, ("adaptive_verification",)),
    ({"num_speculative_tokens_per_batch_size": [(1, 8, 4), (9, 64, 0)]}, ("schedule",)),
    ({"num_speculative_tokens_per_batch_size": [(1, 1, 4)]}, ()),
    ({"num_speculative_tokens_per_batch_size": None, "method": "eagle"}, ()),
    ({"method": "ngram"}, ("matches",)),
    ({"method": "suffix"}, ("matches",)),
    ({}, ()),
]


def test_drafts_that_vary_in_length_are_known_from_the_launch() -> None:
    """A schedule with one number, which the switch needs, varies nothing."""
    for speculation, expected in LAUNCHES:
        config = Thing(speculative_config=Thing(**speculation), observability_config=Thing())
        assert facts(state(vllm_config=config)).launch == expected, speculation


def test_a_server_that_only_prefills_is_known_from_the_launch() -> None:
    for role in ("kv_producer", "kv_consumer", "kv_both", None):
        config = Thing(
            speculative_config=None,
            kv_transfer_config=Thing(kv_role=role),
            observability_config=Thing(),
        )
        expected = (role,) if role == "kv_producer" else ()
        assert facts(state(vllm_config=config)).launch == expected
