"""A captured page whose counters move from look to look, as those of a busy server do."""

from __future__ import annotations

from pathlib import Path

CAPTURE = Path(__file__).parents[1] / "data" / "vllm-0.32-draft-k4.2.prom"
_GROWTH = 0.01


def pages(count: int, capture: Path = CAPTURE) -> list[bytes]:
    """``count`` pages in their order: every counter and histogram grows by a hundredth a page."""
    lines = capture.read_text().splitlines()
    kinds = dict(line.split(" ")[2:4] for line in lines if line.startswith("# TYPE "))
    counting = {name for name, kind in kinds.items() if kind in ("counter", "histogram")}
    parts = [_split(line, counting) for line in lines]
    return [
        "".join(
            f"{head}\n" if value is None else f"{head} {_grown(value, page)}\n"
            for head, value in parts
        ).encode()
        for page in range(count)
    ]


def _split(line: str, counting: set[str]) -> tuple[str, float | None]:
    head, _, value = line.rpartition(" ")
    name = head.partition("{")[0]
    family = name
    for suffix in ("_bucket", "_sum", "_count"):
        family = family.removesuffix(suffix) if family not in counting else family
    return (head, float(value)) if family in counting and line[0] != "#" else (line, None)


def _grown(value: float, page: int) -> float:
    grown = value * (1 + _GROWTH * page)
    return float(int(grown)) if value.is_integer() else grown
