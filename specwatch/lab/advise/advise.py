"""Advice on a pairing of target and draft, before a server starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as with_fields

from msgspec.structs import replace

from specwatch.errors import ConfigError
from specwatch.lab.advise import formats
from specwatch.lab.advise.advice import (
    LEVELS,
    TOPICS,
    Advice,
    Expected,
    Finding,
    Memory,
    ServerPlan,
    Traffic,
    cited,
    reported,
)
from specwatch.lab.advise.candidate import Candidate
from specwatch.lab.advise.files import MissingLibrary
from specwatch.lab.advise.heuristics import (
    quantization_findings,
    size_findings,
    temperature_finding,
    traffic_findings,
)
from specwatch.lab.advise.memory import UTILIZATION, Footprint, mtp_footprint, plan_memory
from specwatch.lab.advise.methods import HEADS, LOOKUPS, method_findings, method_of
from specwatch.lab.advise.speedup import (
    ACCEPTANCES,
    MOST_DRAFTED,
    DraftCost,
    draft_cost,
    expected_speedup,
    k_findings,
    largest_k,
    usual_k,
)
from specwatch.lab.advise.vocabulary import Vocabulary, read_vocabulary
from specwatch.lab.advise.vocabulary_comparison import compare_vocabularies
from specwatch.wording import figures

_GIVEN = "what was given here"
_HOTTEST = 100
"""Higher values are not temperatures."""
_CONTEXT = 8192
"""Default length of a request, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRequest:
    """Everything known about a pairing; memory is bytes of one GPU. None means not known."""

    version: str
    plan: ServerPlan
    traffic: Traffic
    target: Candidate
    draft: Candidate | None
    gpus: int | None = None
    gpu_memory: int | None = None
    gpu_findings: tuple[Finding, ...] = ()


def advise(request: AdviceRequest) -> Advice:
    """All findings on a pairing. Raises ConfigError for files that cannot be read."""
    plan, target, draft = request.plan, request.target, request.draft
    method = method_of(plan, draft)
    if plan.server == "vllm":
        plan = with_fields(plan, tensor_parallel=plan.parallel(request.gpus))
    is_head = method == "mtp" or method in HEADS
    if draft is not None and is_head:
        draft = draft.as_head()
    request = with_fields(request, plan=plan, draft=draft)
    k = min(plan.k, MOST_DRAFTED) if plan.k is not None and plan.k > 0 else None
    findings = [*request.gpu_findings, *plan.findings, *target.findings]
    findings += [] if draft is None else draft.findings
    findings += method_findings(method, target, draft, plan)
    cost: DraftCost | None = None
    table: tuple[Expected, ...] = ()
    if method is not None:
        if k is None:
            k = usual_k(method, target, draft)
            findings.append(
                Finding(
                    "k",
                    "note",
                    f"k = {k} is assumed below, as none is given",
                    "5 is the common start, unless the draft has its own number",
                    reported("G"),
                )
            )
        cost = draft_cost(method, k, target, draft, plan)
        most = largest_k(method, k, target, draft)
        table = tuple(expected_speedup(rate, k, cost.steps, most) for rate in ACCEPTANCES)
        findings += size_findings(target, draft if method == "draft_model" else None)
        findings += quantization_findings(target, draft)
        if draft is not None and method not in LOOKUPS:
            findings += _tokenizer_findings(target, draft, plan, head=is_head)
        findings += k_findings(method, k, cost, table, plan)
        findings += traffic_findings(method, plan, request.traffic)
    memory, memory_findings = _memory(request, method, k if method is not None else None)
    findings += memory_findings
    findings += _own_temperature(target, request.traffic)
    findings = [replace(finding, source=finding.source or _GIVEN) for finding in findings]
    findings.sort(key=lambda item: (LEVELS.index(item.level), TOPICS.index(item.topic)))
    kv_bits = _kv_bits(plan)
    return Advice(
        version=request.version,
        method=method,
        k=k,
        target=target.model(kv_bits),
        draft=None if draft is None else draft.model(kv_bits),
        memory=memory,
        draft_cost=None if cost is None else cost.steps,
        draft_cost_assumed=cost is not None and cost.assumed,
        expected=table,
        findings=tuple(findings),
        sources=cited(findings, "GL" if table else ""),
        sound=not any(finding.level == "wrong" for finding in findings),
    )


def _tokenizer_findings(
    target: Candidate, draft: Candidate, plan: ServerPlan, *, head: bool
) -> Iterator[Finding]:
    vocabularies: list[Vocabulary | None] = []
    for side in (target, draft):
        files = None if side.files is None else side.files.tokenizer
        try:
            vocabularies.append(None if files is None else read_vocabulary(files))
        except MissingLibrary:
            raise
        except ConfigError as error:
            vocabularies.append(None)
            yield Finding(
                "tokenizer",
                "doubt",
                f"a tokenizer cannot be read: {error}",
                remedy="compare target and draft by hand: nothing else detects a mismatch",
            )
    yield from compare_vocabularies(
        *vocabularies,
        target_size=None if target.architecture is None else target.architecture.vocabulary,
        draft_size=None if draft.architecture is None else draft.architecture.vocabulary,
        server=plan.server,
        head=head,
        heterogeneous=bool(plan.speculation.get("use_heterogeneous_vocab")),
    )


def _memory(
    request: AdviceRequest, method: str | None, k: int | None
) -> tuple[Memory | None, list[Finding]]:
    plan, target, draft = request.plan, request.target, request.draft
    if plan.speculation.get("on_cpu"):
        text = "memory: -ngl leaves layers to the CPU, which is not included in this plan"
        return None, [Finding("memory", "note", text)]
    if request.gpus is None or request.gpu_memory is None:
        return None, []
    if target.weights is None:
        text = "memory: the size of the target is not known"
        remedy = "give its folder, or its parameters such as --model 70B"
        return None, [Finding("memory", "note", text, remedy=remedy)]
    engine_gpus = _engine_gpus(plan, request.gpus)
    context = plan.context or (target.architecture and target.architecture.context) or _CONTEXT
    # llama.cpp reserves memory for each slot.
    slots = plan.slots if plan.server == "llama.cpp" else None
    memory, findings = plan_memory(
        _footprint(target),
        _draft_footprint(target, draft, method),
        gpus=engine_gpus,
        gpu_memory=request.gpu_memory,
        context=context,
        concurrency=request.traffic.concurrency or slots,
        utilization=plan.utilization or (UTILIZATION if plan.server == "vllm" else 1.0),
        tensor_parallel=plan.parallel(engine_gpus),
        draft_tensor_parallel=plan.draft_parallel,
        draft_tokens=(k or 0) if plan.server == "vllm" else 0,
        kv_bits=_kv_bits(plan),
    )
    if target.is_guessed or (draft is not None and draft.is_guessed and memory.kv_without > 0):
        # A size from a name may be wrong.
        doubt = "; sizes are read from names, and may be wrong"
        findings = [
            replace(item, level="doubt", reason=item.reason + doubt)
            if item.level == "wrong"
            else item
            for item in findings
        ]
    findings += _gpu_findings(plan, request.gpus, engine_gpus)
    if memory.draft_weights is None:
        findings.append(
            Finding(
                "memory",
                "doubt" if method == "draft_model" else "note",
                "the draft's memory is not known, nor the memory left with it",
                remedy="give its folder, or its parameters such as --draft 1B",
            )
        )
    if plan.kv_dtype is not None and formats.cache_bits(plan.kv_dtype) is None:
        text = (
            f"memory: the bits of --kv-cache-dtype {plan.kv_dtype} are not known, and assumed to be"
        )
        findings.append(Finding("memory", "note", f"{text} 16"))
    return memory, findings


def _footprint(model: Candidate) -> Footprint:
    shape = model.architecture
    if shape is None:
        return Footprint(model.weights)
    return Footprint(model.weights, shape.layers, shape.kv_heads)


def _draft_footprint(
    target: Candidate, draft: Candidate | None, method: str | None
) -> Footprint | None:
    if draft is not None:
        return _footprint(draft)
    if method != "mtp":
        return None
    if target.architecture is None:
        return Footprint(target.mtp_weights)
    return mtp_footprint(target.architecture, target.mtp_weights)


def _engine_gpus(plan: ServerPlan, gpus: int) -> int:
    """GPUs of one engine: those of its command, else all, as stages of a pipeline."""
    parallel = plan.parallel(gpus)
    if plan.from_command and plan.server == "vllm":
        return parallel * plan.pipeline_parallel
    return parallel * max(gpus // parallel, 1)


def _gpu_findings(plan: ServerPlan, gpus: int, engine_gpus: int) -> Iterator[Finding]:
    """Findings on the number of GPUs."""
    parallel = plan.parallel(gpus)
    idle = gpus - engine_gpus * plan.data_parallel
    if gpus < engine_gpus:
        yield Finding(
            "memory",
            "wrong",
            f"one engine needs {figures.counted(engine_gpus, 'GPU')}, and there"
            f" {'is' if gpus == 1 else 'are'} {gpus}: the server does not start",
            "tensor times pipeline parallelism; memory is planned as if there were enough",
            remedy="lower --tensor-parallel-size, or give as many GPUs as one engine has",
        )
    elif idle > 0:
        yield Finding(
            "memory",
            "note",
            f"{idle} of {figures.counted(gpus, 'GPU')} are not used by this engine",
            "it uses tensor times pipeline parallelism",
            remedy="raise --tensor-parallel-size, or run replicas on the others",
        )
    elif not plan.from_command and plan.server == "vllm" and engine_gpus > parallel:
        stages = engine_gpus // parallel
        yield Finding(
            "memory",
            "note",
            f"{figures.counted(engine_gpus, 'GPU')} are used as {stages} stages of a pipeline",
            f"each layer is divided among {parallel} of them only",
            remedy=f"start vLLM with --pipeline-parallel-size {stages}, else the others are idle",
        )


def _kv_bits(plan: ServerPlan) -> float:
    if plan.kv_dtype is None:
        return 32.0 if plan.dtype in ("float32", "float") else 16.0
    return formats.cache_bits(plan.kv_dtype) or 16.0


def _own_temperature(target: Candidate, traffic: Traffic) -> Iterator[Finding]:
    """Finding on the target's default temperature, if none is given."""
    config = None if target.files is None else target.files.generation_config
    temperature = None if config is None else config.get("temperature")
    if traffic.temperatures or not isinstance(temperature, int | float):
        return
    if 0 < temperature < _HOTTEST:
        finding = temperature_finding(float(temperature))
        yield replace(
            finding,
            text=f"requests without a temperature: {finding.text}",
            source=f"the target's generation_config.json; {finding.source}",
        )
