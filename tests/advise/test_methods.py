"""Which method will draft, what it needs, and what vLLM makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from specwatch.errors import ConfigError
from specwatch.lab.advise import methods, speedup
from specwatch.lab.advise.advice import Finding, ServerPlan
from specwatch.lab.advise.candidate import Candidate
from specwatch.lab.advise.speedup import DraftCost
from tests.advise.models import EAGLE, EAGLE3, LLAMA, MEDUSA, candidate

DEEPSEEK = LLAMA | {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_nextn_predict_layers": 1,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "head_dim": 256,
}
TARGET = candidate(8, name="target", config=LLAMA)


def plan(method: str | None = None, **keys: Any) -> ServerPlan:
    """What a command with these keys in its ``--speculative-config`` asks."""
    speculation = {key: value for key, value in keys.items() if key not in ServerPlan.__slots__}
    others = {key: value for key, value in keys.items() if key in ServerPlan.__slots__}
    if method is not None:
        speculation["method"] = method
    if "k" in others:
        speculation["num_speculative_tokens"] = others["k"]
    return ServerPlan(
        **{"from_command": True, "method": method, "speculation": speculation, **others}
    )


def test_the_method_follows_from_the_draft() -> None:
    """As SpeculativeConfig of vLLM finds the method that nobody names."""

    def detected(name: str, config: dict[str, Any]) -> str | None:
        draft = candidate(1, name=name, config=config)
        return methods.method_of(plan(draft=name), draft)

    assert detected("Llama-3.2-1B", LLAMA) == "draft_model"
    assert detected("yuhuili/EAGLE-LLaMA3-Instruct-8B", EAGLE) == "eagle"
    assert detected("AngelSlim/Qwen3-8B_eagle3", EAGLE3) == "eagle3"
    assert detected("medusa-8b", MEDUSA) == "medusa"
    assert methods.method_of(plan(draft="[ngram]"), None) == "ngram"
    assert methods.method_of(plan("deepseek_mtp"), None) == "mtp"
    assert methods.method_of(ServerPlan(), None) is None


def test_a_mistyped_method_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"method 'eagel3' is not known; did you mean \"eagle3\""):
        methods.method_of(ServerPlan(method="eagel3"), None)


def test_a_method_in_a_command_may_be_of_a_later_version() -> None:
    assert methods.method_of(plan("eagle4", draft="x"), None) == "eagle4"
    assert speedup.draft_cost("eagle4", 3, TARGET, None, plan("eagle4")).assumed


def gravest(
    method: str, draft: Candidate | None, given: ServerPlan, target: Candidate = TARGET
) -> str:
    """Those findings of a method that speak against it."""
    result = methods.method_findings(method, target, draft, given)
    return "\n".join(
        f"{item.level}: {item.text}" for item in result if item.level in ("wrong", "doubt")
    )


NEEDS = {
    "a model without one": (
        "draft_model",
        None,
        plan(k=5),
        "wrong: draft_model has no draft",
    ),
    "eagle without a head": ("eagle", None, plan("eagle", k=5), "wrong: eagle has no draft"),
    "a head named a model": (
        "draft_model",
        EAGLE,
        plan(k=5),
        "is a head (eagle), not a model by itself",
    ),
    "a head of another width": (
        "eagle",
        EAGLE | {"hidden_size": 5120, "num_attention_heads": 40},
        plan("eagle", k=5),
        "made for a target of hidden size 5120, and this target's is 4096",
    ),
    "eagle3 tells its target's width": (
        "eagle3",
        EAGLE3 | {"target_hidden_size": 8192},
        plan("eagle3", k=5),
        "made for a target of hidden size 8192",
    ),
    "the third named as the first": (
        "eagle",
        EAGLE3,
        plan("eagle", k=5),
        "wrong: the head is of EAGLE-3",
    ),
    "the first named as the third": (
        "eagle3",
        EAGLE,
        plan("eagle3", k=5),
        "doubt: nothing in the head's config.json says",
    ),
    "a whole model as a head": (
        "eagle3",
        LLAMA | {"draft_vocab_size": 32000, "architectures": ["LlamaForCausalLM"]},
        plan("eagle3", k=5),
        "",
    ),
    "more than there are heads": (
        "medusa",
        MEDUSA,
        plan("medusa", k=5),
        "k = 5, and there are 4 Medusa heads",
    ),
    "prediction that the target lacks": (
        "mtp",
        None,
        plan("mtp", k=1),
        "doubt: the target's config.json names no layers",
    ),
    "a method of a later version": (
        "eagle4",
        None,
        plan("eagle4", k=3),
        "doubt: the method eagle4 is not known here",
    ),
    "a speculator": (
        "mlp_speculator",
        None,
        plan("mlp_speculator", k=3, draft="x"),
        "and then does not start",
    ),
    "suffix": ("suffix", None, plan("suffix"), "doubt: suffix needs the package arctic-inference"),
}


@pytest.mark.parametrize(("method", "config", "given", "text"), NEEDS.values(), ids=NEEDS.keys())
def test_missing_needs_of_a_method_are_found(
    method: str, config: dict[str, Any] | None, given: ServerPlan, text: str
) -> None:
    draft = None if config is None else candidate(0.5, name="draft", config=config)
    assert text in gravest(method, draft, given)


def test_a_fitting_draft_has_no_severe_finding() -> None:
    for method, config in (("eagle", EAGLE), ("eagle3", EAGLE3)):
        draft = candidate(0.5, name="draft", config=config)
        assert gravest(method, draft, plan(method, k=4)) == "", method
    medusa = candidate(0.5, name="draft", config=MEDUSA)
    gone = "doubt: vLLM 0.33 has no method medusa any more"
    assert gravest("medusa", medusa, plan("medusa", k=4)) == gone
    for method in ("ngram", "ngram_gpu"):
        assert gravest(method, None, plan(method, k=4)) == ""


@pytest.mark.parametrize(
    ("layers", "k", "text"),
    [
        (1, 1, ""),
        (1, 3, ""),
        (2, 3, ""),
        (2, 4, ""),
        (2, 2, ""),
        (0, 1, "doubt: the target's config.json names no layers"),
    ],
)
def test_multi_token_prediction_counts_layers(layers: int, k: int, text: str) -> None:
    target = candidate(80, config=DEEPSEEK | {"num_nextn_predict_layers": layers})
    result = gravest("mtp", None, plan("mtp", k=k), target)
    assert result.startswith(text)
    assert bool(result) == bool(text)


def refused(method: str, given: ServerPlan) -> list[str]:
    result = methods.method_findings(method, TARGET, None, given)
    return [item.text for item in result if item.level == "wrong"]


def test_drafts_accepted_at_random_are_wrong() -> None:
    given = plan("ngram", k=3, rejection_sample_method="synthetic")
    (text,) = refused("ngram", given)
    assert "its answers are garbage" in text


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"disable_by_batch_size": 8}, "no key disable_by_batch_size in --speculative-config"),
        ({"ngram_prompt_lookup_max": 4}, "no key ngram_prompt_lookup_max"),
    ],
)
def test_keys_with_which_vllm_does_not_start_are_wrong(keys: dict[str, int], text: str) -> None:
    (found,) = refused("ngram", plan("ngram", k=3, **keys))
    assert text in found


def test_a_draft_is_on_one_gpu_or_on_all() -> None:
    given = plan(k=3, tensor_parallel=4, draft_tensor_parallel_size=2)
    draft = candidate(1, config=LLAMA)
    wrong = [
        item.text
        for item in methods.method_findings("draft_model", TARGET, draft, given)
        if item.level == "wrong"
    ]
    assert any("size 2 beside a target on 4 GPUs" in text for text in wrong)
    ignored = plan("ngram", k=3, tensor_parallel=4, draft_tensor_parallel_size=2)
    assert refused("ngram", ignored) == []


def test_lossy_verification_is_a_named_doubt() -> None:
    given = plan("ngram", k=3, rejection_sample_method="fly")
    assert "fly is lossy: the output may differ" in gravest("ngram", None, given)


def test_what_vllm_validates_itself_has_no_finding() -> None:
    """Keys and rules that it may have gained, or dropped, since."""
    for given in (
        plan("ngram"),
        plan("ngram", k=3, a_key_of_tomorrow=True, use_heterogeneous_vocab=True),
        plan("ngram", num_speculative_tokens="five", prompt_lookup_min=5, prompt_lookup_max=2),
        plan("ngram", k=3, tensor_parallel=3),
        plan("ngram", k=3, num_speculative_tokens_per_batch_size={"8": 3}),
        plan("ngram", num_speculative_tokens="4", prompt_lookup_min=2, prompt_lookup_max=4),
        plan("ngram", k=3, num_speculative_tokens_per_batch_size=[[1, 8, 3], [9, 32, 0]]),
        plan("suffix"),
    ):
        assert refused(str(given.method), given) == []
        result = methods.method_findings(str(given.method), TARGET, None, given)
        assert "vLLM checks the rest of the configuration at its start" in {
            item.text for item in result
        }


def test_a_draft_on_one_gpu_of_several_is_a_doubt() -> None:
    given = plan(k=3, tensor_parallel=4, draft_tensor_parallel_size=1)
    result = methods.method_findings("draft_model", TARGET, candidate(1, config=LLAMA), given)
    assert any(
        item.level == "doubt" and "draft_tensor_parallel_size 1" in item.text for item in result
    )


@pytest.mark.parametrize(
    ("method", "ranks", "level", "text"),
    [
        ("eagle3", 1, "note", "with k = 0 the drafter still runs"),
        ("eagle3", 2, "doubt", "ignored by vLLM 0.32 under data parallelism"),
        ("mtp", 1, "doubt", "is not known to work with mtp"),
        ("ngram", 1, "doubt", "is not known to work with ngram"),
    ],
)
def test_a_schedule_of_k_by_batch_size_has_its_limits(
    method: str, ranks: int, level: str, text: str
) -> None:
    given = plan(
        method, k=3, data_parallel=ranks, num_speculative_tokens_per_batch_size=[[1, 8, 3]]
    )
    (result,) = [
        item for item in methods.method_findings(method, TARGET, None, given) if text in item.text
    ]
    assert result.level == level
    assert ("48494" in result.reason) is (method == "mtp")


def about_k(method: str, k: int, cost: float | DraftCost = 0.1, **given: Any) -> list[Finding]:
    cost = cost if isinstance(cost, DraftCost) else DraftCost(cost)
    table = [speedup.expected_speedup(rate, k, cost.steps) for rate in speedup.ACCEPTANCES]
    return list(speedup.k_findings(method, k, cost, table, ServerPlan(k=k, **given)))


@pytest.mark.parametrize(
    ("k", "level"),
    [
        (1, "doubt"),
        (2, "doubt"),
        (3, "ok"),
        (5, "ok"),
        (7, "ok"),
        (8, "note"),
        (9, "doubt"),
        (16, "doubt"),
    ],
)
def test_k_in_range(k: int, level: str) -> None:
    assert about_k("draft_model", k)[0].level == level


def test_large_k_is_fine_for_llama_cpp_and_a_doubt_for_prediction_layers() -> None:
    assert about_k("draft_model", 16, server="llama.cpp")[0].level == "ok"
    assert about_k("draft_model", 16, server="llama.cpp")[0].source.startswith("llama.cpp")
    assert not any(item.text.startswith("k = ") for item in about_k("mtp", 1)), "layers tell"
    assert about_k("mtp", 9)[0].level == "doubt"


def test_a_k_beyond_any_use_is_wrong() -> None:
    result = list(
        speedup.k_findings("draft_model", 1024, DraftCost(0.1), (), ServerPlan(k=10**400))
    )
    assert result[0].level == "wrong"
    assert "is far too large: this advice is for 1,024" in result[0].text
    assert len(result[0].text) < 100


def test_a_draft_that_costs_a_step_cannot_pay() -> None:
    result = about_k("draft_model", 5, 1.1)
    assert any(
        item.level == "wrong" and "no acceptance can compensate that" in item.text
        for item in result
    )
    text = next(item.text for item in about_k("draft_model", 5, 0.11) if "break-even" in item.text)
    assert "break-even at 11% acceptance, worth it (1.3x) at 20%" in text


def test_a_smaller_k_is_proposed_where_it_is_expected_to_be_better() -> None:
    assert any(
        "k = 3 is expected to be best" in item.text for item in about_k("draft_model", 7, 0.5)
    )
    assert not any("to be best" in item.text for item in about_k("draft_model", 5, 0.02))


def test_no_k_above_the_number_of_layers_or_heads_is_proposed() -> None:
    layered = candidate(80, config=DEEPSEEK | {"num_nextn_predict_layers": 2})
    medusa = candidate(0.5, config=MEDUSA)
    assert speedup.largest_k("mtp", 2, layered, None) == 2
    assert speedup.largest_k("mtp", 4, layered, None) == 0, "they run again"
    assert speedup.largest_k("mtp", 1, candidate(80), None) == 0, "nothing is known of it"
    assert speedup.largest_k("medusa", 3, TARGET, medusa) == 4
    assert speedup.largest_k("medusa", 3, TARGET, None) == 0
    assert speedup.largest_k("draft_model", 3, TARGET, None) == speedup.MOST_TOKENS


@pytest.mark.parametrize("method", ["eagle3", "medusa", "mtp"])
def test_the_size_in_the_name_of_a_head_is_that_of_its_target(method: str) -> None:
    named = candidate(8, name="org/EAGLE-8B", size_source="its name")
    cost = speedup.draft_cost(method, 3, candidate(8), named, ServerPlan())
    assert cost == DraftCost(0.05, assumed=True)
    assert speedup.draft_cost("draft_model", 3, candidate(8), named, ServerPlan()) == DraftCost(1)


def test_an_assumed_cost_is_marked_as_assumed() -> None:
    """An unknown head's 0.05 is ours, not the paper's."""
    for cost, text, first in (
        (DraftCost(0.05), "a draft token costs 0.05 times", "[L]"),
        (
            DraftCost(0.05, assumed=True),
            "a draft token is assumed to cost 0.05 times",
            "an assumed",
        ),
    ):
        (result,) = [item for item in about_k("eagle3", 5, cost) if "break-even" in item.text]
        assert result.text.startswith(text)
        assert result.source.startswith(first)
        assert ("is not known" in result.reason) is cost.assumed


def test_the_draft_cost_is_the_ratio_of_bytes_read() -> None:
    """Bytes of weights read, on the GPU that has most to read."""

    def cost(method: str, draft: Candidate | None, k: int = 5, **given: Any) -> float:
        result = speedup.draft_cost(method, k, candidate(70), draft, ServerPlan(**given))
        assert not result.assumed
        return result.steps

    assert cost("ngram", None) == 0
    assert cost("draft_model", candidate(7)) == pytest.approx(0.1)
    assert cost("draft_model", candidate(7, bits=4)) == pytest.approx(0.025)
    alone = {"draft_tensor_parallel_size": 1}
    assert cost("draft_model", candidate(7), tensor_parallel=4, speculation=alone) == (
        pytest.approx(0.4)
    )
    assert cost("medusa", candidate(7)) == pytest.approx(0.02), "one pass for all k"
    mixture = candidate(30, active=3_000_000_000)
    result = speedup.draft_cost("draft_model", 5, mixture, candidate(0.6), ServerPlan())
    assert result.steps == pytest.approx(0.2)
