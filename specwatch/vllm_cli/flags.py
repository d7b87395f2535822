"""The flags of ``vllm serve``, for all code that reads or changes its command line.

Sources: ``make_arg_parser`` of vLLM 0.32, ``EngineArgs.add_cli_args`` of 0.33, and of 0.6 to 0.31
for flags that were removed. ``tests/e2e/test_strip.py`` compares the table with an installed vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from specwatch.errors import CannotStrip

Nargs = Literal["0", "1", "?", "+"]
"""How many words a flag takes, as in argparse: none, one, at most one, at least one."""

CONFIG_FILE = "--config"
MODEL = "--model"
MIDDLEWARE = "--middleware"
SCHEDULER = "--scheduler-cls"
DATA_PARALLEL = "--data-parallel-size"
TIMINGS = "--enable-per-request-metrics"
SPECULATIVE_CONFIG = "--speculative-config"
RECORD = "--per-request-spec-decode-metrics"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag by its full name, dashes included.

    ``speculation``: it asks for speculation, or vLLM does not start with it without speculation.
    ``is_old``: only vLLM up to 0.8.2 knows it.
    """

    name: str
    nargs: Nargs
    aliases: tuple[str, ...] = ()
    speculation: bool = False
    is_old: bool = False

    @property
    def spellings(self) -> tuple[str, ...]:
        """All names in full; a flag without a value can be negated."""
        negated = (f"--no-{self.name[2:]}",) if self.nargs == "0" else ()
        return (self.name, *self.aliases, *negated)


def flags_of(
    nargs: Nargs, names: str, *, speculation: bool = False, is_old: bool = False
) -> Iterator[Flag]:
    """Yield flags from names between blanks, without their dashes: ``name|-alias|other-name``."""
    for text in names.split():
        name, *others = text.split("|")
        aliases = tuple(other if other.startswith("-") else f"--{other}" for other in others)
        yield Flag(f"--{name}", nargs, aliases, speculation, is_old)


_NO_VALUE = (
    "aggregate-engine-logging allow-credentials allow-deprecated-quantization async-scheduling "
    "cohere-is-reasoning-model cudagraph-metrics data-parallel-external-lb|-dpe "
    "data-parallel-hybrid-lb|-dph data-parallel-multi-port-external-lb|-dpm dcp-q-replicate "
    "disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs "
    "disable-hybrid-kv-cache-manager disable-log-stats disable-nccl-for-dp-synchronization "
    "disable-sliding-window disable-uvicorn-access-log enable-auto-tool-choice "
    "enable-batch-sharded-sampling enable-chunked-prefill enable-cumem-allocator enable-dbo "
    "enable-elastic-ep enable-ep-weight-filter enable-eplb enable-expert-parallel|-ep "
    "enable-fault-tolerance enable-flash-late-interaction enable-flashinfer-autotune "
    "enable-force-include-usage enable-hc-sp enable-layerwise-nvtx-tracing enable-log-deltas "
    "enable-log-outputs enable-log-requests enable-logging-iteration-details enable-lora "
    "enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint "
    "enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds enable-moe-shared-loras "
    "enable-nccl-comm-suspend enable-offline-docs enable-per-request-metrics enable-prefix-caching "
    "enable-prompt-embeds enable-prompt-tokens-details enable-request-id-headers "
    "enable-return-routed-experts enable-scale-out enable-server-load-tracking "
    "enable-shm-tensor-arena enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint "
    "enable-tower-connector-lora enable-trace-replay enforce-eager "
    "exclude-tools-when-tool-choice-none fail-on-environ-validation fully-sharded-loras grpc "
    "headless interleave-mm-strings jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill "
    "language-model-only log-error-stack long-prefill-token-threshold-adaptive "
    "mm-device-do-normalize mm-encoder-only monokernel numa-bind ray-workers-use-nsight "
    "return-sampling-mask return-tokens-as-token-ids scheduler-reserve-full-isl skip-mm-profiling "
    "skip-tokenizer-init sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay "
    "tokens-only trust-remote-code trust-request-chat-template trust-request-mm-kwargs "
    "use-fp64-gumbel use-replayssm use-tqdm-on-load"
)
_ONE_VALUE = (
    "additional-config all2all-backend allowed-headers allowed-local-media-path allowed-methods "
    "allowed-origins anthropic-disabled-thinking-effort api-server-count|-asc attention-backend "
    "attention-config|-ac aux-output-config block-size chat-template chat-template-content-format "
    "code-revision cohere-format compilation-config|-cc config config-format convert "
    "cp-kv-cache-interleave-size cpu-distributed-timeout-seconds cpu-offload-gb "
    "custom-histogram-buckets data-parallel-address|-dpa data-parallel-backend|-dpb "
    "data-parallel-rank|-dpn data-parallel-rpc-port|-dpp data-parallel-size-local|-dpl "
    "data-parallel-size|-dp data-parallel-start-rank|-dpr data-parallel-supervisor-port "
    "dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend "
    "dcp-kv-cache-interleave-size decode-context-parallel-size|-dcp default-chat-template-kwargs "
    "default-mm-loras device-ids diffusion-config|-dc disable-access-log-for-endpoints "
    "distributed-executor-backend distributed-timeout-seconds download-dir "
    "dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s "
    "dp-supervisor-probe-timeout-s dp-sync-interval dtype ec-manager-config ec-transfer-config "
    "elastic-ep-max-dp-size engram-config eplb-config expert-placement-strategy "
    "fault-tolerance-config fingerprint-mode fingerprint-value gdn-prefill-backend "
    "generation-config gpu-memory-utilization|device-memory-utilization grpc-port "
    "h11-max-header-count h11-max-incomplete-event-size hf-config-path hf-overrides host "
    "io-processor-plugin ir-op-priority jit-monitor-mode kda-decode-backend kda-prefill-backend "
    "kernel-config kv-cache-dtype kv-cache-memory-bytes kv-cache-metrics-sample kv-events-config "
    "kv-offloading-backend kv-offloading-size kv-transfer-config limit-mm-per-prompt "
    "linear-backend load-format log-config-file log-level logging-config logprobs-mode "
    "long-prefill-token-threshold lora-dtype mamba-backend mamba-block-size mamba-cache-dtype "
    "mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype mamba-ssu-algorithm "
    "master-addr master-port max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs "
    "max-lora-cls-labels max-lora-rank max-loras max-model-len max-num-active-seqs "
    "max-num-batched-tokens max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens "
    "max-num-seqs max-parallel-loading-workers media-io-kwargs middleware mm-encoder-attn-backend "
    "mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin "
    "mm-encoder-fp8-scale-save-path mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb "
    "mm-processor-cache-gb mm-processor-cache-type mm-processor-device mm-processor-kwargs "
    "mm-shm-cache-max-object-size-mb mm-tensor-ipc model model-class-overrides model-impl "
    "model-loader-extra-config moe-backend nnodes|-n node-rank|-r num-gpu-blocks-override "
    "offload-backend offload-group-size offload-num-in-group offload-prefetch-step "
    "optimization-level otlp-traces-endpoint override-generation-config performance-mode "
    "pipeline-parallel-size|-pp pooler-config port prefill-context-parallel-size|-pcp "
    "prefill-schedule-interval prefix-cache-retention-interval prefix-caching-hash-algo "
    "prefix-match-unit profiler-config pt-load-map-location quantization-config quantization|-q "
    "reasoning-config reasoning-parser reasoning-parser-plugin renderer-num-workers "
    "replayssm-buffer-len response-role revision root-path runner safetensors-load-strategy "
    "safetensors-prefetch-block-size safetensors-prefetch-num-threads scheduler-cls "
    "scheduling-policy seed show-hidden-metrics-for-version shutdown-timeout sleep-mode-backend "
    "sparse-indexer-topk-backend sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile "
    "ssl-ciphers ssl-keyfile stream-interval structured-outputs-config tensor-parallel-size|-tp "
    "tokenizer tokenizer-mode tokenizer-revision tool-call-parser tool-parser-plugin tool-server "
    "tool-strict-level ubatch-size uds uvicorn-log-level video-pruning-method video-pruning-rate "
    "watchdog-config watermark watermark-config weight-transfer-config worker-cls "
    "worker-extension-cls"
)
_SEVERAL_VALUES = (
    "allowed-media-domains api-key collect-detailed-traces cpu-offload-params cuda-graph-sizes "
    "cudagraph-capture-sizes ignore-patterns kv-cache-dtype-skip-layers logits-processors "
    "lora-modules lora-target-modules numa-bind-cpus numa-bind-nodes offload-params "
    "pooling-returned-token-ids prompt-adapters served-model-name sleep-preserve-parameter-names"
)
_SPECULATION = (
    "speculative-config|-sc spec-method spec-model spec-tokens per-request-spec-decode-metrics"
)
_OLD_SPECULATION = (
    "speculative-model speculative-model-quantization num-speculative-tokens "
    "speculative-draft-tensor-parallel-size|-spec-draft-tp speculative-max-model-len "
    "speculative-disable-by-batch-size ngram-prompt-lookup-max ngram-prompt-lookup-min "
    "spec-decoding-acceptance-method typical-acceptance-sampler-posterior-threshold "
    "typical-acceptance-sampler-posterior-alpha"
)
_OLD_SPECULATION_SWITCHES = "speculative-disable-mqa-scorer disable-logprobs-during-spec-decoding"


def by_spelling(*flags: Flag) -> dict[str, Flag]:
    """Flags by each of their full names."""
    return {spelling: flag for flag in flags for spelling in flag.spellings}


FLAGS: Mapping[str, Flag] = by_spelling(
    *flags_of("1", _SPECULATION, speculation=True),
    *flags_of("1", _ONE_VALUE),
    *flags_of("0", _NO_VALUE),
    *flags_of("+", _SEVERAL_VALUES),
    *flags_of("?", "hf-token"),
    *flags_of("1", _OLD_SPECULATION, speculation=True, is_old=True),
    *flags_of("0", _OLD_SPECULATION_SWITCHES, speculation=True, is_old=True),
)
"""The table, by every full name."""

_TOKENS = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_SWITCH = re.compile(r"--(no|enable|disable|use|trust|enforce|skip|return)-|-O.")
"""How flags without a value begin, with few exceptions; for flags that are not in the table."""


def with_dashes(spelling: str) -> str:
    """A flag's name as the table has it: vLLM takes underscores for dashes up to the first dot."""
    return spelling.replace("_", "-") if spelling.startswith("--") else spelling


def resolve(spelling: str, flags: Mapping[str, Flag] = FLAGS) -> Flag | None:
    """The flag of a full or abbreviated name; None for an unknown one.

    Raises CannotStrip for an ambiguous abbreviation, if speculation is among the candidates.
    """
    name = with_dashes(spelling)
    if name in flags:
        return flags[name]
    matches = {flag.name: flag for full, flag in flags.items() if full.startswith(name)}
    # vLLM no longer has the old ones: only if no other flag matches.
    current = [flag for flag in matches.values() if not flag.is_old] or list(matches.values())
    if len(current) == 1:
        return current[0]
    if not any(flag.speculation for flag in current):
        return None
    if all(flag.speculation for flag in current) and len({flag.nargs for flag in current}) == 1:
        return current[0]
    raise CannotStrip(f"{spelling} is short for several flags: write it in full")


def token_count(text: str) -> int:
    """A number of tokens as ``human_readable_int`` of vLLM reads it: 8192, 8k or 8K (of 1024).

    Raises ValueError for other texts.
    """
    match = _TOKENS.fullmatch(text.strip())
    if match is None or (match[2].isupper() and "." in match[1]):
        raise ValueError(f"{text} is not a number of tokens")
    base = 1024 if match[2].isupper() else 1000
    return int(Decimal(match[1]) * base ** (" kmgt".index(match[2].lower() or " ")))


def is_switch(spelling: str) -> bool:
    """Whether a flag that is not in the table looks as if it took no value."""
    return _SWITCH.match(with_dashes(spelling)) is not None
