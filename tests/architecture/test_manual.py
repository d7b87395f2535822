"""What README and manual say can be typed and opened."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from specwatch.cli import group

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


class Typed(NamedTuple):
    """A command that a page has the reader type."""

    place: str
    words: list[str]


def commands(page: Path) -> Iterator[Typed]:
    """Lines of code blocks, and code within text, that begin with ``specwatch``."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    for line in [*"\n".join(blocks).splitlines(), *inline]:
        found = re.match(r"(?:\$ )?(?:sudo )?specwatch ([a-z].*)", line)
        if found:
            yield Typed(page.name, shlex.split(found[1], comments=True))


def problem(words: list[str]) -> str | None:
    """Why the words are not a command with its options."""
    command: click.Command = group
    context = click.Context(group)
    while isinstance(command, click.Group) and words and words[0][0] not in "-.":
        inner = command.get_command(context, words[0])
        if inner is None:
            return f"no command {words[0]}"
        command, words = inner, words[1:]
    own = words[: words.index("--")] if "--" in words else words
    known = {option for param in command.params for option in param.opts} | {"--help"}
    unknown = [each for each in own if each.startswith("-") and each.partition("=")[0] not in known]
    return f"no option {unknown[0]} of {command.name}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    found = {
        f"{' '.join(typed.words)}: {said}"
        for typed in commands(page)
        if page.name != "CHANGELOG.md" and (said := problem(typed.words))
    }
    assert not found


def test_an_unknown_command_or_option_is_noticed() -> None:
    assert problem(["guard", "stop"]) == "no command stop"
    assert problem(["probe", "--targets", "x"]) == "no option --targets of probe"
    assert problem(["run", "--", "vllm", "serve", "--port"]) is None
    assert len([typed for page in PAGES for typed in commands(page)]) > 60


@pytest.mark.parametrize("page", list(ROOT.glob("*.md")), ids=lambda page: page.name)
def test_linked_files_exist(page: Path) -> None:
    """Links within ``docs`` are checked when the manual is built."""
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert all((ROOT / link).exists() for link in links if not link.startswith("https://"))


def test_files_of_the_architecture_exist() -> None:
    text, _, table = (ROOT / "docs/architecture.md").read_text().partition("## To change something")
    cells = "".join(re.findall(r"^\| .* \| (.*) \|$", table, re.M))
    named = [*re.findall(r"`([^`]+)`", cells), *re.findall(r"`([a-z_/]+(?:\.py|/))`", text)]
    assert len(named) > 40
    folders = (ROOT, ROOT / "specwatch")
    assert [each for each in named if not any((base / each).exists() for base in folders)] == []
