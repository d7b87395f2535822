"""Real vLLM's own parser reads a stripped line as it reads the original without speculation."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from specwatch.errors import CannotStrip
from specwatch.vllm_cli import strip
from specwatch.vllm_cli.flags import FLAGS, resolve
from tests.e2e.serve_lines import Line, lines

LINES = 2000
OLD = {"--cuda-graph-sizes", "--prompt-adapters", "--pooling-returned-token-ids"}
"""Flags of the table that only versions before this one have."""
MAY_REFUSE = ("would become a value", "false means", "names a model, and")
"""Reasons to refuse lines that are as vLLM wants them, but could be read in two ways."""
STARTS = {
    "serve": ("vllm", "serve"),
    "module": ("python3", "-m", "vllm.entrypoints.openai.api_server"),
}


class Oracle:
    """vLLM's parsers, in a process of its environment."""

    def __init__(self, python: Path, log: Path) -> None:
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [python, Path(__file__).with_name("namespaces.py")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self.actions: list[dict[str, Any]] = self._answer()

    def compare(self, line: Line, stripped: Sequence[str]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([*line, list(stripped)]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said, f"vLLM's process ended with {self._process.wait()}"
        return json.loads(said)


@pytest.fixture(scope="module")
def oracle(vllm_install: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    log = tmp_path_factory.mktemp("oracle") / "log"
    oracle = Oracle(vllm_install / "bin" / "python", log)
    yield oracle
    oracle.close()


def test_vllm_reads_the_stripped_line_as_the_original_without_speculation(
    oracle: Oracle, tmp_path: Path
) -> None:
    outcomes: Counter[str] = Counter()
    for line in lines(oracle.actions, LINES, tmp_path):
        start = STARTS[line.entry]
        try:
            stripped = strip([*start, *line.words], read_file=_read)
        except CannotStrip as error:
            outcomes["not stripped" if any(why in str(error) for why in MAY_REFUSE) else "?"] += 1
            continue
        assert stripped.command[: len(start)] == start
        assert strip(stripped.command, read_file=_read).removed == (), line
        found = oracle.compare(line, stripped.command[len(start) :])
        if "refused" in found:
            outcomes["no line of vLLM"] += 1
            continue
        assert found == {"differs": {}}, (line, stripped)
        outcomes["stripped" if stripped.removed else "without speculation"] += 1
    assert outcomes["stripped"] > LINES / 2, outcomes
    assert not outcomes["?"], outcomes
    assert outcomes["not stripped"] < LINES / 20, outcomes


def test_the_table_has_the_flags_of_this_vllm(oracle: Oracle) -> None:
    """With all their names and the number of their values: abbreviations follow from that."""
    nargs: dict[Any, str] = {None: "1", 0: "0", "?": "?", "+": "+", "*": "+"}
    for action in oracle.actions:
        for spelling in action["flags"]:
            flag = FLAGS.get(spelling)
            assert flag is not None, spelling
            assert flag.nargs == nargs[action["nargs"]], spelling
    known = {spelling for action in oracle.actions for spelling in action["flags"]}
    assert resolve("--enable-exp") is FLAGS["-ep"]
    gone = {f.name for f in FLAGS.values() if not f.speculation and f.name not in known}
    assert gone - OLD == {"--config", "--model"}


def _read(path: str) -> str:
    return Path(path).read_text()
