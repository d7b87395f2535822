"""Is a pairing of target and draft sound: everything that can be said before a server starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from specwatch.advice import (
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
from specwatch.advice.asked import Asked, Hints
from specwatch.advice.candidate import Candidate
from specwatch.advice.command import whole
from specwatch.advice.memory import Footprint
from specwatch.advice.model import LEVELS, Advice, Expected, Finding, Memory, Topic
from specwatch.advice.tokenizers import Tokenizer
from specwatch.errors import ConfigError

_TOPICS: tuple[Topic, ...] = (
    "tokenizer", "memory", "method", "pairing", "k", "quantization", "use", "model",
)  # fmt: skip
_GIVEN = "what was given here"
_CONTEXT = 8192
"""Tokens of a request where neither the command nor the model says."""
_EIGHT_BIT_CACHES = ("fp8", "int8")


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
    asked, target, draft = request.asked, request.target, request.draft
    method = methods.method_of(asked, draft)
    k = asked.k if asked.k is not None and asked.k > 0 else None
    found = [*request.gpu_findings, *asked.findings, *target.findings]
    found += [] if draft is None else draft.findings
    found += methods.findings(method, target, draft, asked)
    cost: float | None = None
    table: tuple[Expected, ...] = ()
    if method is not None:
        if k is None:
            k = _own_k(method, draft)
            found.append(_assumed(k))
        cost = draft_tokens.draft_cost(method, k, target, draft, asked)
        table = expected.table(k, cost)
        found += _of_method(method, request)
        found += draft_tokens.findings(method, k, cost, table, asked)
        found += use.findings(method, asked, request.hints)
    plan, of_memory = _memory(request)
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
        draft_cost=cost,
        expected=table,
        findings=tuple(sorted(found, key=_rank)),
        sources=sources.cited(found, "GL" if table else ""),
        sound=not any(each.level == "wrong" for each in found),
    )


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


def _own_k(method: str, draft: Candidate | None) -> int:
    """The k of a draft that has one of its own, else the common one."""
    config = {} if draft is None or draft.folder is None else draft.folder.config
    names = {"mlp_speculator": "n_predict", "medusa": "medusa_num_heads", "dspark": "block_size"}
    found = config.get(names.get(method, ""))
    return found if isinstance(found, int) and found > 0 else draft_tokens.COMMON_K


def _assumed(k: int) -> Finding:
    return Finding(
        topic="k",
        level="note",
        text=f"k = {k} is taken for what follows, as none is given",
        reason="5 is the common start, unless the draft has a number of its own",
        source=sources.reported("GT"),
    )


def _memory(request: Request) -> tuple[Memory | None, list[Finding]]:
    asked, target, draft = request.asked, request.target, request.draft
    if asked.speculation.get("on_cpu"):
        return None, [_unknown("-ngl leaves layers to the CPU, whose memory is not planned here")]
    if request.gpus is None or request.gpu_memory is None:
        return None, []
    if target.weights is None:
        remedy = "give its folder, or its parameters such as --model 70B"
        return None, [_unknown("the size of the target is not known", remedy)]
    alone = whole(asked.speculation.get("draft_tensor_parallel_size"))
    utilization = asked.utilization or (memory.UTILIZATION if asked.server == "vllm" else 1.0)
    # llama.cpp gives each GPU whole layers.
    parallel = asked.tensor_parallel if asked.server == "vllm" else 1
    shape = target.architecture
    theirs = None
    if draft is not None and draft.architecture is not None and draft.weights is not None:
        theirs = Footprint(draft.architecture, draft.weights)
    if shape is None or not shape.layers or (theirs is None and draft is not None):
        return rough_memory.plan(
            target.weights,
            0 if draft is None or draft.weights is None else draft.weights,
            gpus=request.gpus,
            gpu_memory=request.gpu_memory,
            utilization=utilization,
            draft_parallel=alone,
        )
    return memory.plan(
        Footprint(shape, target.weights),
        theirs,
        gpus=request.gpus,
        gpu_memory=request.gpu_memory,
        context=asked.context or shape.context or _CONTEXT,
        concurrency=request.hints.concurrency or _slots(asked),
        utilization=utilization,
        tensor_parallel=parallel,
        draft_tensor_parallel=alone,
        kv_bits=_kv_bits(asked),
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
    return 8.0 if name.startswith(_EIGHT_BIT_CACHES) else quantization.bits(name)


def _sampling(target: Candidate, hints: Hints) -> Iterator[Finding]:
    given = None if target.folder is None else target.folder.generation_config
    temperature = None if given is None else given.get("temperature")
    if hints.temperatures or not isinstance(temperature, int | float) or temperature <= 0:
        return
    judged = use.of_temperature(float(temperature))
    yield replace(
        judged,
        text=f"requests that name no temperature: {judged.text}",
        source=f"the target's generation_config.json; {judged.source}",
    )
