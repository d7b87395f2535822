"""Is a pairing of target and draft sound: everything that can be said before a server starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as changed

from msgspec.structs import replace

from specwatch.advise import (
    draft_tokens,
    expected,
    memory,
    methods,
    pairing,
    precision,
    quantization,
    rough_memory,
    sources,
    tokenizers,
    use,
    vllm_rules,
)
from specwatch.advise.asked import Asked, Hints
from specwatch.advise.candidate import Candidate
from specwatch.advise.command import whole
from specwatch.advise.memory import Footprint
from specwatch.advise.model import LEVELS, Advice, Expected, Finding, Memory, Topic
from specwatch.advise.tokenizers import Tokenizer
from specwatch.errors import ConfigError
from specwatch.wording import figures

_TOPICS: tuple[Topic, ...] = (
    "tokenizer", "memory", "method", "pairing", "k", "quantization", "use", "model",
)  # fmt: skip
_GIVEN = "what was given here"
_HOTTEST = 100
"""Above it a temperature is none."""
_CONTEXT = 8192
"""Tokens of a request where neither the command nor the model says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """All that advice is given on; memory is bytes, of one GPU. None is what is not known."""

    version: str
    asked: Asked
    hints: Hints
    target: Candidate
    draft: Candidate | None
    gpus: int | None = None
    gpu_memory: int | None = None
    gpu_findings: tuple[Finding, ...] = ()


def advise(request: Request) -> Advice:
    """Put together all findings on a pairing. Raises ConfigError for what cannot be read."""
    method = methods.method_of(request.asked, request.draft)
    request = _resolved(request, method)
    asked, target, draft = request.asked, request.target, request.draft
    k = min(asked.k, expected.MOST_DRAFTED) if asked.k is not None and asked.k > 0 else None
    found = [*request.gpu_findings, *asked.findings, *target.findings]
    found += [] if draft is None else draft.findings
    found += methods.findings(method, target, draft, asked)
    cost: draft_tokens.Cost | None = None
    table: tuple[Expected, ...] = ()
    if method is not None:
        if k is None:
            k = _own_k(method, target, draft)
            found.append(_assumed(k))
        cost = draft_tokens.draft_cost(method, k, target, draft, asked)
        table = expected.table(k, cost.steps, draft_tokens.most_k(method, k, target, draft))
        found += _of_method(method, request)
        found += draft_tokens.findings(method, k, cost, table, asked)
        found += use.findings(method, asked, request.hints)
    plan, of_memory = _memory(request, method, k if method is not None else None)
    found += of_memory
    found += _sampling(target, request.hints)
    found = [replace(each, source=each.source or _GIVEN) for each in found]
    kv_bits = _kv_bits(asked)
    return Advice(
        version=request.version,
        method=method,
        k=k,
        target=target.model(kv_bits),
        draft=None if draft is None else draft.model(kv_bits),
        memory=plan,
        draft_cost=None if cost is None else cost.steps,
        draft_cost_assumed=cost is not None and cost.assumed,
        expected=table,
        findings=tuple(sorted(found, key=_rank)),
        sources=sources.cited(found, "GL" if table else ""),
        sound=not any(each.level == "wrong" for each in found),
    )


def _resolved(request: Request, method: str | None) -> Request:
    """The request with what is told by its other parts: GPUs that share layers, whether a head."""
    asked, draft = request.asked, request.draft
    if asked.server == "vllm":
        asked = changed(asked, tensor_parallel=asked.parallel(request.gpus))
    if draft is not None and (method == "mtp" or method in methods.HEADS):
        draft = draft.as_head()
    return changed(request, asked=asked, draft=draft)


def _rank(finding: Finding) -> tuple[int, int]:
    return LEVELS.index(finding.level), _TOPICS.index(finding.topic)


def _of_method(method: str, request: Request) -> Iterator[Finding]:
    asked, target, draft = request.asked, request.target, request.draft
    head = method in methods.HEADS or method == "mtp"
    own = draft if method == "draft_model" else None
    yield from pairing.findings(target, own)
    yield from precision.findings(target, draft)
    if draft is not None and method not in methods.LOOKUPS:
        yield from _tokens(request, head=head)
    if asked.server == "vllm":
        yield from vllm_rules.findings(method, target, draft, asked)


def _tokens(request: Request, *, head: bool) -> Iterator[Finding]:
    target, draft = request.target, request.draft
    sides: list[Tokenizer | None] = []
    sizes: list[int | None] = []
    for side in (target, draft):
        files = None if side is None or side.folder is None else side.folder.tokenizer
        sizes.append(None if side is None or side.folder is None else side.folder.vocabulary_size)
        try:
            sides.append(None if files is None else tokenizers.read(files))
        except ConfigError as error:
            sides.append(None)
            yield Finding(
                topic="tokenizer",
                level="doubt",
                text=f"a tokenizer cannot be read: {error}",
                remedy="compare target and draft by hand: nothing else warns of a mismatch",
            )
    yield from tokenizers.compare(
        sides[0],
        sides[1],
        target_size=sizes[0],
        draft_size=sizes[1],
        server=request.asked.server,
        head=head,
        heterogeneous=bool(request.asked.speculation.get("use_heterogeneous_vocab")),
    )


def _own_k(method: str, target: Candidate, draft: Candidate | None) -> int:
    """The k of a draft, or of layers for prediction, that has its own; else the common one."""
    if method == "mtp" and draft is None and target.architecture is not None:
        return target.architecture.mtp_layers or draft_tokens.COMMON_K
    shape = None if draft is None else draft.architecture
    if shape is None:
        return draft_tokens.COMMON_K
    if method == "dspark":
        most = expected.MOST_DRAFTED
        return shape.keys.optional("block_size", most=most) or draft_tokens.COMMON_K
    positions = shape.positions if method in ("medusa", "mlp_speculator") else None
    return positions or draft_tokens.COMMON_K


def _assumed(k: int) -> Finding:
    return Finding(
        topic="k",
        level="note",
        text=f"k = {k} is taken for what follows, as none is given",
        reason="5 is the common start, unless the draft has a number of its own",
        source=sources.reported("G"),
    )


def _memory(
    request: Request, method: str | None, k: int | None
) -> tuple[Memory | None, list[Finding]]:
    asked, target = request.asked, request.target
    if asked.speculation.get("on_cpu"):
        return None, [_unknown("-ngl leaves layers to the CPU, whose memory is not planned here")]
    if request.gpus is None or request.gpu_memory is None:
        return None, []
    if target.weights is None:
        remedy = "give its folder, or its parameters such as --model 70B"
        return None, [_unknown("the size of the target is not known", remedy)]
    engine = _engine(asked, request.gpus)
    plan, found = _planned(request, target.weights, engine, method, k)
    guessed = target.guessed or (
        request.draft is not None and request.draft.guessed and plan.kv_without > 0
    )
    found = [_by_name(each) if guessed else each for each in found]
    found += _of_gpus(asked, request.gpus, engine)
    if plan.draft_weights is None:
        found.append(_draft_unknown(method))
    if asked.kv_dtype is not None and quantization.of_cache(asked.kv_dtype) is None:
        said = f"the bits of --kv-cache-dtype {asked.kv_dtype} are not known, and taken to be 16"
        found.append(_unknown(said))
    return plan, found


def _planned(
    request: Request, weights: int, engine: int, method: str | None, k: int | None
) -> tuple[Memory, list[Finding]]:
    """The plan of one engine: by the shapes of both models, else by their bytes alone."""
    asked, target = request.asked, request.target
    alone = whole(asked.speculation.get("draft_tensor_parallel_size"))
    utilization = asked.utilization or (memory.UTILIZATION if asked.server == "vllm" else 1.0)
    shape, (theirs, drafted) = target.architecture, _draft(target, request.draft, method)
    if shape is None or not shape.layers or (drafted and theirs is None):
        return rough_memory.plan(
            weights,
            drafted,
            gpus=engine,
            gpu_memory=request.gpu_memory or 0,
            utilization=utilization,
            draft_parallel=alone,
        )
    return memory.plan(
        Footprint(shape, weights),
        theirs,
        gpus=engine,
        gpu_memory=request.gpu_memory or 0,
        context=asked.context or shape.context or _CONTEXT,
        concurrency=request.hints.concurrency or _slots(asked),
        utilization=utilization,
        tensor_parallel=asked.parallel(engine),
        draft_tensor_parallel=alone,
        draft_known=drafted is not None,
        draft_tokens=(k or 0) if asked.server == "vllm" else 0,
        kv_bits=_kv_bits(asked),
    )


def _draft(
    target: Candidate, draft: Candidate | None, method: str | None
) -> tuple[Footprint | None, int | None]:
    """What drafts, where its shape is known, and the bytes of its weights; None: not known."""
    if draft is None and method != "mtp":
        return None, 0
    model = target if draft is None else draft
    weights = target.mtp_weights if draft is None else draft.weights
    if model.architecture is None or weights is None:
        return None, weights
    if draft is None:
        return memory.of_prediction(model.architecture, weights), weights
    return Footprint(model.architecture, weights), weights


def _engine(asked: Asked, gpus: int) -> int:
    """GPUs of one engine: as many as a command starts it on; else all, in stages of a pipeline."""
    parallel = asked.parallel(gpus)
    if asked.written and asked.server == "vllm":
        return parallel * asked.pipeline_parallel
    return parallel * max(gpus // parallel, 1)


def _of_gpus(asked: Asked, gpus: int, engine: int) -> Iterator[Finding]:
    """Yield whether there are as many GPUs as one engine wants."""
    idle = gpus - engine * asked.data_parallel
    if gpus < engine:
        yield Finding(
            topic="memory",
            level="wrong",
            text=f"one engine wants {figures.counted(engine, 'GPU')}, and there"
            f" {'is' if gpus == 1 else 'are'} {gpus}: the server does not start",
            reason="tensor times pipeline parallelism; memory is planned as if there were enough",
            remedy="lower --tensor-parallel-size, or give as many GPUs as one engine has",
        )
    elif idle > 0:
        yield Finding(
            topic="memory",
            level="note",
            text=f"{idle} of {figures.counted(gpus, 'GPU')} are not used by this engine",
            reason="it has as many as its tensor times its pipeline parallelism",
            remedy="raise --tensor-parallel-size, or run replicas on the others",
        )
    elif not asked.written and asked.server == "vllm" and engine > asked.parallel(gpus):
        stages = engine // asked.parallel(gpus)
        yield Finding(
            topic="memory",
            level="note",
            text=f"{figures.counted(engine, 'GPU')} are taken to be {stages} stages of a pipeline",
            reason=f"each layer is shared out among {asked.parallel(gpus)} of them only",
            remedy=f"start vLLM with --pipeline-parallel-size {stages}: else the others are idle",
        )


def _by_name(finding: Finding) -> Finding:
    """A finding on memory where only a name tells a size: nothing is sure to be wrong."""
    if finding.level != "wrong":
        return finding
    reason = f"{finding.reason}; sizes are read off names, and may be off"
    return replace(finding, level="doubt", reason=reason)


def _draft_unknown(method: str | None) -> Finding:
    return Finding(
        topic="memory",
        level="doubt" if method == "draft_model" else "note",
        text="the draft's memory is not known: what is left beside it cannot be told",
        remedy="give its folder, or its parameters such as --draft 1B",
    )


def _slots(asked: Asked) -> int | None:
    """Requests that the server reserves memory for: llama.cpp does so for each slot."""
    return asked.slots if asked.server == "llama.cpp" else None


def _unknown(text: str, remedy: str = "") -> Finding:
    return Finding(topic="memory", level="note", text=f"memory: {text}", remedy=remedy)


def _kv_bits(asked: Asked) -> float:
    name = asked.kv_dtype
    if name is None:
        return 32.0 if asked.dtype in ("float32", "float") else 16.0
    return quantization.of_cache(name) or 16.0


def _sampling(target: Candidate, hints: Hints) -> Iterator[Finding]:
    given = None if target.folder is None else target.folder.generation_config
    temperature = None if given is None else given.get("temperature")
    if hints.temperatures or not isinstance(temperature, int | float):
        return
    if not 0 < temperature < _HOTTEST:
        return
    judged = use.of_temperature(float(temperature))
    yield replace(
        judged,
        text=f"requests that name no temperature: {judged.text}",
        source=f"the target's generation_config.json; {judged.source}",
    )
