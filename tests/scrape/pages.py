"""Small pages of engines, as a server would count up."""

from __future__ import annotations

START = 1_790_000_000.0


def vllm(
    tokens: float = 100,
    *,
    drafts: float | None = None,
    model: str = "m",
    start: float | None = START,
) -> bytes:
    """A page of vLLM; with ``drafts``, of one that speculates with k = 2 and accepts half."""
    label = f'{{engine="0",model_name="{model}"}}'
    lines = [] if start is None else [f"process_start_time_seconds {start}"]
    lines += [
        f"vllm:generation_tokens_total{label} {tokens}",
        f"vllm:num_requests_running{label} 1",
        f"vllm:num_requests_waiting{label} 0",
    ]
    if drafts is not None:
        position = f'{{engine="0",model_name="{model}",position="%d"}}'
        total = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines += [
            f"vllm:spec_decode_num_drafts_total{label} {drafts}",
            f"vllm:spec_decode_num_draft_tokens_total{label} {2 * drafts}",
            f"vllm:spec_decode_num_accepted_tokens_total{label} {drafts}",
            f"{total}{position % 0} {drafts}",
            f"{total}{position % 1} 0",
        ]
    return ("\n".join(lines) + "\n").encode()


def llama(tokens: float = 100) -> bytes:
    """A page of llama.cpp's server, which names no model."""
    return f"llamacpp:tokens_predicted_total {tokens}\n".encode()


def many_models(count: int) -> bytes:
    """A page that claims to serve so many models."""
    return b"".join(
        b'vllm:generation_tokens_total{engine="0",model_name="m%d"} 1\n' % n for n in range(count)
    )
