"""Real vLLM's own parser reads a stripped line as it reads the original without speculation."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from specwatch.errors import CannotStrip
from specwatch.vllm_cli import strip
from specwatch.vllm_cli.flags import FLAGS, resolve
from tests.e2e.oracle import Oracle

MODEL = "org/model-7b"
DRAFTS = (
    '{"method": "ngram", "num_speculative_tokens": 3}',
    '{"model": "draft model", "num_speculative_tokens": 5, "x": {"y": [1, -2]}}',
    '{"method": "eagle", "note": "--spec-method"}',
    "null",
    "",
)
KEYS = ("method", "model", "num_speculative_tokens", "x.y", "draft_sample_method", "a_b-c")
KEY_VALUES = ("ngram", "3", "-3", "0.5", "--spec-method", "-x", "two words", '{"a": 1}', "null")
OWN = {
    "--speculative-config": 8,
    "--spec-method": 9,
    "--spec-model": 9,
    "--spec-tokens": 8,
    "--per-request-spec-decode-metrics": 6,
    "-sc": 2,
}
"""Flags of speculation, with the length of the shortest abbreviation that vLLM takes."""

Part = list[str]


class Line(NamedTuple):
    """A command line; ``entry`` is ``serve`` or ``module``."""

    entry: str
    words: list[str]


def lines(actions: Sequence[dict[str, Any]], count: int, folder: Path) -> Iterator[Line]:
    """Yield ``count`` command lines, the same in every run; files of ``--config`` in ``folder``."""
    for number in range(count):
        yield _Maker(actions, random.Random(number), folder / f"{number}.yaml").line()


class _Maker:
    def __init__(self, actions: Sequence[dict[str, Any]], chance: random.Random, file: Path):
        self._actions = [action for action in actions if action["values"] or action["nargs"] == 0]
        self._all = [flag for action in actions for flag in action["flags"]]
        self._all += [*OWN, "--help", "--config", "--model"]
        self._chance = chance
        self._file = file

    def line(self) -> Line:
        chance = self._chance
        entry = chance.choice(("serve", "serve", "module"))
        parts = [self._other() for _ in range(chance.randrange(6))]
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            parts.insert(chance.randint(0, len(parts)), self._speculation())
        where = chance.choice(("first", "first", "first", "anywhere", "flag", "file", "none"))
        if chance.random() < 0.3 or where == "file":
            self._write_file(with_model=where == "file" or where == "first")
            parts.insert(chance.randint(0, len(parts)), ["--config", str(self._file)])
        if where == "anywhere":
            parts.insert(chance.randint(0, len(parts)), [MODEL])
        elif where == "flag":
            spelling = chance.choice((["--model", MODEL], [f"--model={MODEL}"]))
            parts.insert(chance.randint(0, len(parts)), spelling)
        elif where == "first":
            parts.insert(0, [MODEL])
        return Line(entry, [word for part in parts for word in part])

    def _other(self) -> Part:
        chance = self._chance
        action = chance.choice(self._actions)
        flag = self._spelt(chance.choice(action["flags"]))
        if action["nargs"] == 0:
            return [flag]
        value = chance.choice(action["values"])
        if '{"a": {"b": 1}}' in action["values"] and chance.random() < 0.6:
            return self._dotted(flag)
        if action["nargs"] == "+":
            return [flag, *(chance.choice(action["values"]) for _ in range(chance.randint(1, 3)))]
        if action["nargs"] == "?" and chance.random() < 0.3:
            return [flag]
        return self._with_value(flag, value)

    def _speculation(self) -> Part:
        chance = self._chance
        name = chance.choice((*OWN, "--speculative-config", "-sc"))
        flag = self._spelt(name, OWN[name])
        if name in ("--speculative-config", "-sc"):
            if chance.random() < 0.6:
                return self._dotted(flag)
            return self._with_value(flag, chance.choice(DRAFTS))
        values = {
            "--spec-method": ("ngram", "eagle"),
            "--spec-model": ("draft", "two words", "-- odd"),
            "--spec-tokens": ("3", "8"),
            "--per-request-spec-decode-metrics": ("summary", "detailed", "none"),
        }
        return self._with_value(flag, chance.choice(values[name]))

    def _dotted(self, flag: str) -> Part:
        chance = self._chance
        parts: Part = []
        for _ in range(chance.randint(1, 3)):
            if chance.random() < 0.2:
                parts += self._with_value(f"{flag}.list+", chance.choice(("a,b", "-a", "1")))
            else:
                value = chance.choice(KEY_VALUES)
                parts += self._with_value(f"{flag}.{chance.choice(KEYS)}", value)
        return parts

    def _with_value(self, flag: str, value: str) -> Part:
        if flag != "-s" and self._chance.random() < 0.4:
            return [f"{flag}={value}"]
        return [flag, value]

    def _spelt(self, flag: str, shortest: int | None = None) -> str:
        """The flag with underscores or shortened, where vLLM takes that."""
        chance = self._chance
        if chance.random() < 0.2:
            least = shortest or len(flag)
            while shortest is None and self._is_clear(flag, least - 1):
                least -= 1
            flag = flag[: chance.randint(least, len(flag))]
        if flag.startswith("--") and chance.random() < 0.3:
            flag = "--" + "".join(
                "_" if letter == "-" and chance.random() < 0.7 else letter for letter in flag[2:]
            )
        return flag

    def _is_clear(self, flag: str, length: int) -> bool:
        short = flag[:length]
        return (
            flag.startswith("--")
            and length > 3
            and not any(other.startswith(short) for other in self._all if other != flag)
        )

    def _write_file(self, with_model: bool) -> None:
        chance = self._chance
        content: dict[str, Any] = {}
        for _ in range(chance.randrange(5)):
            action = chance.choice(self._actions)
            key = self._spelt(chance.choice(action["flags"]))
            if not key.startswith("--"):
                continue
            if action["nargs"] == 0:
                content[key[2:]] = chance.random() < 0.8
            elif action["nargs"] == "+":
                content[key[2:]] = [chance.choice(action["values"]) for _ in range(2)]
            else:
                content[key[2:]] = yaml.safe_load(chance.choice(action["values"]))
        if chance.random() < 0.7:
            name = chance.choice(list(OWN)[:-1])
            key = self._spelt(name, OWN[name])[2:]
            content[key] = {
                "--spec-method": "ngram",
                "--spec-model": "draft",
                "--spec-tokens": 3,
                "--per-request-spec-decode-metrics": "summary",
            }.get(name, chance.choice((DRAFTS[0], json.loads(DRAFTS[1]))))
        if chance.random() < 0.2:
            content["speculative_config.method"] = "eagle"
        if with_model:
            content["model"] = MODEL
        keys = list(content)
        chance.shuffle(keys)
        self._file.write_text(yaml.safe_dump({key: content[key] for key in keys}, sort_keys=False))


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


NEWER = {"--monokernel", "--sleep-mode-backend", "--watchdog-config"}
"""Flags of vLLM 0.33."""


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
    assert gone - OLD - NEWER == {"--config", "--model"}


def _read(path: str) -> str:
    return Path(path).read_text()
