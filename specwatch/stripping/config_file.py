"""The file of ``--config``: its keys as vLLM itself puts them on the command line.

Source: ``FlexibleArgumentParser.load_config_file`` and ``_pull_args_from_config`` of vLLM 0.32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from specwatch.errors import CannotStrip
from specwatch.stripping.word import UNKNOWN, spelt

ReadFile = Callable[[str], str]
"""Gives the text of a file; raises OSError or KeyError where it cannot be read."""

FLAG = "--config"
"""Just this spelling is read: ``--config=FILE`` is accepted by vLLM, and ignored."""
_MODEL = "--model"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The file that is named at ``at``, with its ``words``, which come at ``goes_to``.

    ``negative`` are the keys that are set to false.
    """

    path: str
    at: int
    goes_to: int
    words: tuple[str, ...]
    negative: tuple[str, ...]

    def merged(self, words: Sequence[str]) -> tuple[list[str], list[int | None]]:
        """The words of the command as vLLM reads them, and the place that each had in it."""
        outside = [place for place in range(len(words)) if place not in (self.at, self.at + 1)]
        places: list[int | None] = list(outside[: self.goes_to])
        places += [None] * len(self.words)
        places += outside[self.goes_to :]
        merged = [words[place] for place in outside]
        merged[self.goes_to : self.goes_to] = self.words
        return merged, places

    def written_out(self, kept: Sequence[str], model: str | None, serve: bool) -> tuple[str, ...]:
        """What ``kept`` of its words is on the command line itself.

        ``model`` is that of the command line. Raises CannotStrip where versions of vLLM differ.
        """
        if self.negative and not serve:
            raise CannotStrip(
                f"{self.path}: versions of vLLM differ in what {self.negative[0]!r}: false means"
                " there: remove the key, or move speculation from the file to the command line"
            )
        words = list(kept)
        for at, word in enumerate(words):
            if word == FLAG:
                words[at : at + 2] = [f"{FLAG}={words[at + 1]}"]
        if serve and _MODEL in words:
            at = words.index(_MODEL)
            own = words[at + 1 : at + 2]
            del words[at : at + 2]
            words = words if model is not None else own + words
        return tuple(words)

    def names_model(self) -> bool:
        """Whether it names the model."""
        return _MODEL in self.words


def find(words: Sequence[str], read_file: ReadFile | None) -> ConfigFile | None:
    """The file that the words of vLLM name; None where they name none.

    Raises CannotStrip when it cannot be read.
    """
    if FLAG not in words:
        return None
    at = words.index(FLAG)
    if FLAG in words[at + 1 :] or at + 1 == len(words):
        raise CannotStrip(f"{FLAG} takes one file, once: vLLM would refuse the command")
    path = words[at + 1]
    content = _content(path, read_file)
    negative = tuple(key for key, value in content.items() if value is False)
    goes_to = 0 if words[0].startswith("-") else 1
    return ConfigFile(path, at, goes_to, tuple(_words(content)), negative)


def _content(path: str, read_file: ReadFile | None) -> Mapping[str, Any]:
    if read_file is None or UNKNOWN in path:
        raise CannotStrip(
            f"{FLAG} {spelt(path)} may hold speculation and cannot be read from here: write its"
            " settings out as flags"
        )
    try:
        content = yaml.safe_load(read_file(path))
    except (OSError, KeyError, UnicodeDecodeError) as error:
        raise CannotStrip(
            f"{FLAG} {spelt(path)} may hold speculation and cannot be read:"
            f" {getattr(error, 'strerror', None) or error}"
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CannotStrip(f"{FLAG} {spelt(path)} is no YAML") from error
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise CannotStrip(f"{FLAG} {spelt(path)} is no mapping of flags to values")
    return content


def _words(content: Mapping[str, Any]) -> Iterator[str]:
    for key, value in content.items():
        if value is False or value == []:
            continue
        yield f"--{key}"
        if isinstance(value, list):
            yield from map(str, value)
        elif isinstance(value, dict):
            yield json.dumps(value)
        elif value is not True:
            yield str(value)
