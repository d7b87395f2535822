"""Everything that a simulated vLLM is started with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from specwatch.errors import ConfigError
from specwatch.lab.simulator.acceptance import SimulatedAcceptance
from specwatch.lab.simulator.costs import SimulatedCosts
from specwatch.lab.simulator.workload import CONSTANT, SimulatedProfile, SimulatedTraffic

ENGINE_VERSIONS = ("0.8.5", "0.10.2", "0.32.0")
NEWEST = ENGINE_VERSIONS[-1]
RECORD_LEVELS = ("none", "summary", "detailed")
SCHEDULE = "num_speculative_tokens_per_batch_size"
"""Key of the speculative configuration, 0.24 and later."""
ADAPTIVE = "enable_adaptive_verification"
"""Key of the speculative configuration, 0.32 and later."""

_CHEAP_DRAFTERS = {"ngram": 0.02, "ngram_gpu": 0.02, "suffix": 0.02}
_DRAFT_MEMORY = 0.15
"""Share of the KV cache that a draft model takes away."""
_HEADS = ("eagle", "mtp", "medusa", "mlp_speculator")


@dataclass(frozen=True, slots=True)
class SimulatedSpeculation:
    """The speculative configuration: how drafts are made, by which model, how many tokens."""

    k: int = 4
    method: str = "draft_model"
    model: str | None = None
    schedule: tuple[tuple[int, int, int], ...] = ()
    """(first, last, draft tokens) by number of scheduled requests; empty for always ``k``."""
    adaptive: bool = False
    """Whether of each draft only those tokens are verified that are likely to be accepted."""

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"num_speculative_tokens is {self.k}: expected 1 or more")
        end = 0
        for first, last, tokens in sorted(self.schedule):
            if min(first, last) < 1:
                problem = "a batch-size range must be positive"
            elif first > last:
                problem = "a batch-size range must not start after its end"
            elif tokens < 0:
                problem = "the number of draft tokens must be 0 or more"
            elif first <= end:
                problem = "batch-size ranges must not overlap"
            elif not end and first != 1:
                problem = "the first batch-size range must start at 1"
            else:
                end = last
                continue
            raise ConfigError(f"{SCHEDULE}: {problem}, found {[first, last, tokens]}")

    def lookup(self, max_num_seqs: int) -> list[int] | None:
        """Draft tokens by number of scheduled requests, from 1; None without a schedule."""
        lookup = [0] * (max_num_seqs + 1)
        for first, _, tokens in sorted(self.schedule):  # each goes on until the next begins
            lookup[first:] = [min(tokens, self.k)] * len(lookup[first:])
        return lookup if self.schedule else None

    def passes(self, draft_tokens: int) -> int:
        """Passes of the drafter in a step: with a model one at least, to keep its KV cache."""
        return max(1, draft_tokens) if self.has_model else draft_tokens

    @property
    def draft_cost(self) -> float:
        """Cost of a draft token relative to that of a draft model."""
        if self.method in _CHEAP_DRAFTERS:
            return _CHEAP_DRAFTERS[self.method]
        return 0.4 if any(head in self.method for head in _HEADS) else 1.0

    @property
    def has_model(self) -> bool:
        """Whether a model drafts; it takes memory away from the KV cache."""
        return self.method not in _CHEAP_DRAFTERS


@dataclass(frozen=True, slots=True)
class SimulatedSettings:
    """A simulated vLLM; sizes in tokens unless said otherwise, times in seconds."""

    model: str = "simulated"
    served_model_names: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    speculation: SimulatedSpeculation | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
    max_logprobs: int = 20
    """Below 0 for any number."""
    block_size: int = 16
    kv_cache_tokens: int = 131072
    num_gpu_blocks: int | None = None
    """Blocks of the KV cache, overriding ``kv_cache_tokens``."""
    engines: int = 1
    """Data-parallel size: engine cores behind one server."""
    engine_version: str = NEWEST
    multiprocess: bool = False
    """The page of several API processes: no ``process_*`` families, no ``_created`` series."""
    record: str = "none"
    """Level of the per-request acceptance record in responses."""
    timings: bool = False
    """Per-request times in responses."""
    force_usage: bool = False
    """Streams carry usage, in each chunk, whatever the client asks."""
    middleware: tuple[str, ...] = ()
    switch_directory: Path | None = None
    """Where orders of the switch come from; None to run without a switch."""
    api_keys: tuple[str, ...] = ()
    default_temperature: float = 1.0
    """Temperature of requests that name none."""
    seed: int = 0
    time_scale: float = 1.0
    """Virtual seconds a second."""
    startup: float = 0.0
    traffic: SimulatedTraffic = field(default_factory=SimulatedTraffic)
    acceptance: SimulatedAcceptance = field(default_factory=SimulatedAcceptance)
    costs: SimulatedCosts = field(default_factory=SimulatedCosts)
    drift: SimulatedProfile = CONSTANT
    """Factor on the acceptance rate over virtual time."""
    keep_log: bool = False
    """Keep every request for tests; takes memory without bound."""

    def __post_init__(self) -> None:
        if self.engine_version not in ENGINE_VERSIONS:
            raise ConfigError(
                f"engine version {self.engine_version!r}: expected one of"
                f" {', '.join(ENGINE_VERSIONS)}"
            )
        if self.record not in RECORD_LEVELS:
            raise ConfigError(
                f"--per-request-spec-decode-metrics {self.record!r}: expected one of"
                f" {', '.join(RECORD_LEVELS)}"
            )
        if self.engine_version != NEWEST and (self.timings or self.record != "none"):
            flag = "enable-per-request" if self.timings else "per-request-spec-decode"
            raise ConfigError(f"vLLM {self.engine_version} has no --{flag}-metrics: leave it out")
        if self.engine_version != NEWEST and self.speculation:
            for key, given in (
                (SCHEDULE, self.speculation.schedule),
                (ADAPTIVE, self.speculation.adaptive),
            ):
                if given:
                    raise ConfigError(f"vLLM {self.engine_version} has no {key}: leave it out")
        if self.record != "none" and self.speculation is None:
            raise ConfigError(
                f"--per-request-spec-decode-metrics {self.record} needs speculation: add"
                " --speculative-config or remove the flag"
            )
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "engines"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: expected 1 or more")
        if self.max_model_len < 2 or self.time_scale <= 0:
            raise ConfigError("max_model_len must be at least 2 and the time scale above zero")
        if self.blocks(speculating=True) * self.block_size < self.max_model_len:
            raise ConfigError(
                f"the KV cache holds {self.blocks(speculating=True) * self.block_size} tokens, less"
                f" than max_model_len {self.max_model_len}: lower --max-model-len or raise the"
                " cache"
            )

    @property
    def served(self) -> tuple[str, ...]:
        """Names under which the model is served; the first one is the label on the page."""
        return self.served_model_names or (self.model,)

    @property
    def has_records(self) -> bool:
        """Whether this version signs its answers and can tell how each request went."""
        return self.engine_version == NEWEST

    def blocks(self, speculating: bool) -> int:
        """Blocks of one engine's KV cache."""
        if self.num_gpu_blocks is not None:
            return self.num_gpu_blocks
        share = 1.0
        if speculating and self.speculation is not None and self.speculation.has_model:
            share -= _DRAFT_MEMORY
        return int(self.kv_cache_tokens * share) // self.block_size
