"""Real vLLM's own parser reads a stripped line as it reads the original without speculation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specwatch.errors import CannotStrip
from specwatch.vllm_cli import strip
from specwatch.vllm_cli.flags import FLAGS, resolve
from tests.e2e.oracle import Oracle
from tests.e2e.serve_lines import lines

LINES = 2000
OLD = {"--cuda-graph-sizes", "--prompt-adapters", "--pooling-returned-token-ids"}
"""Flags of the table that only versions before this one have."""
MAY_REFUSE = ("would become a value", "false means", "names a model, and")
"""Reasons to refuse lines that are as vLLM wants them, but could be read in two ways."""
STARTS = {
    "serve": ("vllm", "serve"),
    "module": ("python3", "-m", "vllm.entrypoints.openai.api_server"),
}


@pytest.fixture(scope="module")
def oracle(vllm_install: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    log = tmp_path_factory.mktemp("oracle") / "log"
    with Oracle(vllm_install, "namespaces.py", log) as oracle:
        yield oracle


@pytest.fixture(scope="module")
def actions(oracle: Oracle) -> list[dict[str, Any]]:
    """The flags of this vLLM, with values that they take."""
    actions: list[dict[str, Any]] = oracle.answer()
    return actions


def test_vllm_reads_the_stripped_line_as_the_original_without_speculation(
    oracle: Oracle, actions: list[dict[str, Any]], tmp_path: Path
) -> None:
    outcomes: Counter[str] = Counter()
    for line in lines(actions, LINES, tmp_path):
        start = STARTS[line.entry]
        try:
            stripped = strip([*start, *line.words], read_file=_read)
        except CannotStrip as error:
            outcomes["not stripped" if any(why in str(error) for why in MAY_REFUSE) else "?"] += 1
            continue
        assert stripped.command[: len(start)] == start
        assert strip(stripped.command, read_file=_read).removed == (), line
        found = oracle.ask([*line, stripped.command[len(start) :]])
        if "refused" in found:
            outcomes["no line of vLLM"] += 1
            continue
        assert found == {"differs": {}}, (line, stripped)
        outcomes["stripped" if stripped.removed else "without speculation"] += 1
    assert outcomes["stripped"] > LINES / 2, outcomes
    assert not outcomes["?"], outcomes
    assert outcomes["not stripped"] < LINES / 20, outcomes


def test_the_table_has_the_flags_of_this_vllm(actions: list[dict[str, Any]]) -> None:
    """With all their names and the number of their values: abbreviations follow from that."""
    nargs: dict[Any, str] = {None: "1", 0: "0", "?": "?", "+": "+", "*": "+"}
    for action in actions:
        for spelling in action["flags"]:
            flag = FLAGS.get(spelling)
            assert flag is not None, spelling
            assert flag.nargs == nargs[action["nargs"]], spelling
    known = {spelling for action in actions for spelling in action["flags"]}
    assert resolve("--enable-exp") is FLAGS["-ep"]
    gone = {f.name for f in FLAGS.values() if not f.speculation and f.name not in known}
    assert gone - OLD == {"--config", "--model"}


def _read(path: str) -> str:
    return Path(path).read_text()
