"""The file of ``--config``: its keys as vLLM puts them on the command line.

Source: ``FlexibleArgumentParser.load_config_file`` and ``_pull_args_from_config`` of vLLM 0.32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from specwatch.errors import CannotStrip
from specwatch.vllm_cli.flags import CONFIG_FILE, MODEL
from specwatch.vllm_cli.wrappers import VARIABLE_MARK, spelt

ReadFile = Callable[[str], str]
"""Gives the text of a file; raises OSError or KeyError if it cannot be read."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The file that is named at the place ``named_at``; vLLM reads its ``words`` at ``goes_to``.

    ``negative`` are the keys that are set to false.
    """

    path: str
    named_at: int
    goes_to: int
    words: tuple[str, ...]
    negative: tuple[str, ...]

    def merged(self, words: Sequence[str]) -> tuple[list[str], list[int | None]]:
        """The words of the command as vLLM reads them, and the place that each had in it."""
        outside = [p for p in range(len(words)) if p not in (self.named_at, self.named_at + 1)]
        places: list[int | None] = [*outside]
        places[self.goes_to : self.goes_to] = [None] * len(self.words)
        merged = [words[place] for place in outside]
        merged[self.goes_to : self.goes_to] = self.words
        return merged, places

    def written_out(self, kept: Sequence[str], model: str | None, *, serve: bool) -> list[str]:
        """The words ``kept`` as they go on the command line, which has ``model`` already.

        Raises CannotStrip if versions of vLLM differ.
        """
        if self.negative and not serve:
            raise CannotStrip(
                f"{self.path}: versions of vLLM differ in what {self.negative[0]!r}: false means"
                " there: remove the key, or move speculation from the file to the command line"
            )
        words = list(kept)
        if CONFIG_FILE in words:
            # A file that a file names is not read by vLLM; with = it is accepted, and not read.
            index = words.index(CONFIG_FILE)
            words[index : index + 2] = [f"{CONFIG_FILE}={words[index + 1]}"]
        if serve and MODEL in words:
            index = words.index(MODEL)
            own = words[index + 1 : index + 2]
            del words[index : index + 2]
            words = words if model is not None else own + words
        return words


def find(words: Sequence[str], read_file: ReadFile | None) -> ConfigFile | None:
    """The file that the words of vLLM name; None without one.

    Only ``--config FILE`` counts: vLLM accepts ``--config=FILE``, and does not read it. Raises
    CannotStrip when the file cannot be read.
    """
    if CONFIG_FILE not in words:
        return None
    index = words.index(CONFIG_FILE)
    if CONFIG_FILE in words[index + 1 :] or index + 1 == len(words):
        raise CannotStrip(f"{CONFIG_FILE} takes one file, once: vLLM would refuse the command")
    path = words[index + 1]
    content = _content(path, read_file)
    negative = tuple(key for key, value in content.items() if value is False)
    goes_to = 0 if words[0].startswith("-") else 1
    return ConfigFile(path, index, goes_to, tuple(_words(content)), negative)


def _content(path: str, read_file: ReadFile | None) -> Mapping[str, Any]:
    named = f"{CONFIG_FILE} {spelt(path)}"
    if read_file is None or VARIABLE_MARK in path:
        raise CannotStrip(
            f"{named} may hold speculation and cannot be read from here: write its settings out as"
            " flags"
        )
    try:
        content = yaml.safe_load(read_file(path))
    except (OSError, KeyError, UnicodeDecodeError) as error:
        raise CannotStrip(
            f"{named} may hold speculation and cannot be read:"
            f" {getattr(error, 'strerror', None) or error}"
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CannotStrip(f"{named} is not YAML") from error
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise CannotStrip(f"{named} is not a mapping of flags to values")
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
