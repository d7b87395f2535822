"""Of the tensors that headers list, those of layers for multi-token prediction are told apart."""

from __future__ import annotations

import pytest

from specwatch.advise.stored_weights import Tensor, stored

NAMES = {
    "mtp.layers.0.mlp.gate_proj.weight": True,
    "model.mtp_block.0.mlp.up_proj.weight": True,
    "model.layers.61.self_attn.o_proj.weight": True,
    "model.layers.60.self_attn.o_proj.weight": False,
    "model.embed_tokens.weight": False,
    "model.prompt_mtpx.weight": False,
}


@pytest.mark.parametrize(("name", "is_mtp"), NAMES.items(), ids=NAMES.keys())
def test_layers_for_multi_token_prediction_by_their_names(name: str, is_mtp: bool) -> None:
    """As DeepSeek V3 (after its 61 layers), Qwen3-Next and ERNIE 4.5 call them."""
    config = {"num_hidden_layers": 61, "num_nextn_predict_layers": 1}
    other = Tensor("lm_head.weight", "BF16", (4,), 8)
    found = stored([Tensor(name, "BF16", (8, 2), 32), other], config, ("m.safetensors",))
    assert (found.bytes, found.mtp) == (40, 32 if is_mtp else 0)


def test_layers_past_the_last_are_others_where_none_are_for_prediction() -> None:
    tensor = Tensor("model.layers.61.mlp.up_proj.weight", "BF16", (8, 2), 32)
    assert stored([tensor], {"num_hidden_layers": 61}, ()).mtp == 0
