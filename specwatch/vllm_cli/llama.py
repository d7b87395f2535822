"""Command lines of llama-server: where its own words are, and which of them ask for speculation.

Sources: ``common/arg.cpp`` of llama.cpp, builds with the current names (``--spec-draft-n-max``) and
with older ones (``--draft-max``). It has no positional arguments, so a word that is not a flag is
the value of the flag before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from specwatch.errors import CannotStrip
from specwatch.vllm_cli.wrappers import SHELLS, program_of, spelt

PROGRAMS = frozenset({"llama-server", "llama-server.exe", "llama-cli", "llama-speculative-simple"})
_IMAGE = "llama.cpp:"
_SPECULATION = re.compile(
    r"--(no-)?spec-.+|--draft(-.+)?|--.+-draft"
    r"|-(md|hfd|hfrd|td|tbd|Cd|Crd|Cbd|Crbd|ctkd|ctvd|otd|cmoed|ncmoed|devd|ngld|cd)"
)
_PRESET = re.compile(r"--.+-spec")
_VARIABLE = re.compile(r"LLAMA_ARG_(.*_)?(SPEC|DRAFT)(_.*)?=.*", re.DOTALL)
_FLAG = re.compile(r"-[^\d.].*", re.DOTALL)


def first_word(command: Sequence[str]) -> int | None:
    """The place of the first word after llama-server; None if the command does not start it.

    Texts for a shell are not read.
    """
    for place, word in enumerate(command):
        program = program_of(word)
        if "vllm" in program or program in SHELLS:
            return None
        if program in PROGRAMS or _IMAGE in program:
            return place + 1
    return None


def speculation_places(command: Sequence[str]) -> list[int] | None:
    """The places of all words about speculation; None if the command does not start llama-server.

    Raises CannotStrip if they are not certain.
    """
    first = first_word(command)
    if first is None:
        return None
    for word in command[:first]:
        if _VARIABLE.fullmatch(word):
            raise CannotStrip(f"{spelt(word)} is read by llama-server: give the flag in its place")
    places: list[int] = []
    removing = False
    for place in range(first, len(command)):
        word = command[place]
        if not _FLAG.fullmatch(word):
            places += [place] if removing else []
            removing = False
            continue
        flag = word.replace("_", "-") if word.startswith("--") else word
        if _PRESET.fullmatch(flag):
            raise CannotStrip(
                f"{spelt(word)} chooses a model with its draft: name the model with --model or"
                " --hf-repo, and the draft with --model-draft"
            )
        removing = bool(_SPECULATION.fullmatch(flag.partition("=")[0]))
        places += [place] if removing else []
    return places
