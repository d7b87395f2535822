"""The labels of ``vllm:cache_config_info``, which change with every version."""

from __future__ import annotations


def cache_config(
    engine_version: str, block_size: int, blocks: int, max_model_len: int
) -> dict[str, str]:
    """Labels of ``vllm:cache_config_info``, without ``engine``."""
    labels = {
        "block_size": str(block_size),
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.9",
        "is_attention_free": "False",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(blocks),
        "num_gpu_blocks_override": "None",
        "prefix_caching_hash_algo": "builtin",
        "sliding_window": "None",
    }
    if engine_version in ("0.8.5", "0.10.2"):
        labels |= {
            "calculate_kv_scales": "False",
            "cpu_offload_gb": "0.0",
            "swap_space": "4.0",
            "swap_space_bytes": "4294967296.0",
        }
    if engine_version == "0.10.2":
        labels |= {
            "cpu_kvcache_space_bytes": "None",
            "kv_cache_memory_bytes": "None",
            "kv_sharing_fast_prefill": "False",
            "mamba_cache_dtype": "auto",
            "mamba_page_size_padded": "None",
            "mamba_ssm_cache_dtype": "auto",
            "prefix_caching_hash_algo": "sha256",
        }
    if engine_version == "0.32.0":
        labels |= _CACHE_CONFIG_0_32_0 | {
            "effective_attention_block_size": str(block_size),
            "kv_cache_max_concurrency": str(blocks * block_size / max_model_len),
            "kv_cache_size_tokens": str(blocks * block_size),
        }
    return labels


_CACHE_CONFIG_0_32_0 = {
    "_block_size_resolved": "True",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}
