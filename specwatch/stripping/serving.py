"""The words of vLLM itself, after all that starts it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from specwatch.errors import CannotStrip
from specwatch.stripping import config_file, flags
from specwatch.stripping.config_file import ConfigFile, ReadFile
from specwatch.stripping.edit import Edit
from specwatch.stripping.word import UNKNOWN, spelt


def without_speculation(words: Sequence[str], *, serve: bool, read_file: ReadFile | None) -> Edit:
    """What to change in the arguments of ``vllm serve``, or of the server's module.

    Raises CannotStrip.
    """
    flags.refuse_unclear(words)
    file = config_file.find(words, read_file)
    merged, places = list(words), list[int | None](range(len(words)))
    if file is not None:
        merged, places = file.merged(words)
    notes = _notes_on_model(model_of(merged, serve), read_file)
    found = flags.find(merged)
    if not flags.speculates(found):
        return Edit(notes=notes)
    if not any(flag.is_set and places[flag.start] is None for flag in found):
        found = [flag for flag in found if places[flag.start] is not None]
    gone = frozenset(at for flag in found for at in range(flag.start, flag.stop))
    flags.refuse_captured(merged, gone)
    removed = tuple(merged[at] for at in sorted(gone))
    dropped = frozenset(place for at in gone if (place := places[at]) is not None)
    if file is None or not any(places[at] is None for at in gone):
        return Edit(dropped, removed=removed, notes=notes)
    model = model_of(words, serve)
    if serve and model is None and file.names_model() and (other := flags.loose_value(words)):
        raise CannotStrip(
            f"{file.path} names a model, and {spelt(other)} may be another: put the model directly"
            " after `vllm serve`"
        )
    kept = [word for at, word in enumerate(merged) if places[at] is None and at not in gone]
    return Edit(
        dropped | {file.at, file.at + 1},
        {file.goes_to: file.written_out(kept, model, serve)},
        removed,
        (*notes, _note(file)),
        inlined=True,
    )


def _note(file: ConfigFile) -> str:
    return (
        f"{file.path} holds speculation: its other settings stand on the command line instead, and"
        " what is changed in the file later is not seen"
    )


def model_of(words: Sequence[str], serve: bool) -> str | None:
    """The model that the words name; the positional one counts most."""
    if words and not words[0].startswith("-"):
        return words[0]
    named = [
        words[at + 1] if word == "--model" else word.removeprefix("--model=")
        for at, word in enumerate(words)
        if word.startswith("--model=") or (word == "--model" and at + 1 < len(words))
    ]
    if not named:
        return None
    return named[0] if serve else named[-1]


def _notes_on_model(model: str | None, read_file: ReadFile | None) -> tuple[str, ...]:
    """What a person should know of a model; raises CannotStrip when it brings speculation.

    vLLM serves the verifier of a checkpoint of speculators, with it, whatever the flags say.
    Source: ``maybe_override_with_speculators`` of vLLM.
    """
    if model is None or UNKNOWN in model or read_file is None:
        return ()
    path = f"{model.rstrip('/')}/config.json"
    try:
        text = read_file(path)
    except (FileNotFoundError, NotADirectoryError, KeyError):
        return ()  # It is on a hub, most likely.
    except OSError as error:
        return (f"whether the model brings speculation is not known: {path}: {error.strerror}",)
    try:
        speculators = json.loads(text).get("speculators_config")
    except (ValueError, AttributeError) as error:
        raise CannotStrip(f"{path} is not the configuration of a model") from error
    if speculators is not None:
        raise CannotStrip(
            f"the model {spelt(model)} brings its own speculation: serve its verifier"
            f" {_verifier(speculators)} instead, with --served-model-name {model}"
        )
    return ()


def _verifier(speculators: object) -> str:
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return "(named in its config.json)" if name is None else spelt(str(name))
