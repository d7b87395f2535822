"""A command that starts vLLM without its speculation, or with more flags; other words stay."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass

from specwatch.domain.draft_lengths import CAUSES, DraftLengths
from specwatch.errors import CannotStrip, ConfigError
from specwatch.vllm_cli import llama
from specwatch.vllm_cli.command import (
    Arguments,
    Option,
    ServeCommand,
    read_command,
    refuse_unclear,
    speculation_of,
)
from specwatch.vllm_cli.config_file import ReadFile
from specwatch.vllm_cli.flags import MIDDLEWARE, MODEL, SPECULATIVE_CONFIG, is_switch
from specwatch.vllm_cli.wrappers import VARIABLE_MARK, spelt
from specwatch_tap.launch import draft_lengths

_NOT_ACCELERATION = "extract_hidden_states"
_VARIABLE = re.compile(r"\$\{[^}]*\}")


@dataclass(frozen=True, slots=True)
class Stripped:
    """A command without speculation; one that had none is unchanged, and ``removed`` is empty.

    ``removed`` are the words that asked for speculation, on the line or in its ``--config`` file;
    ``notes`` are sentences about what else changed. ``inlined``: words of that file are on
    the line now. ``draft_lengths``: why drafts vary in length with the speculation that it had.
    """

    command: tuple[str, ...]
    removed: tuple[str, ...]
    notes: tuple[str, ...]
    inlined: bool = False
    draft_lengths: DraftLengths | None = None


def strip(command: Sequence[str], *, read_file: ReadFile | None = None) -> Stripped:
    """Remove speculation from the words of a command that starts vLLM or llama-server; all others
    stay.

    ``read_file`` gives the text of the file that ``--config`` names, and of the model's
    ``config.json``; without it no file is read. Raises CannotStrip with the reason and the remedy
    if the result would be uncertain.
    """
    if (places := llama.speculation_places(command)) is not None:
        refuse_unclear(command)
        others = (word for place, word in enumerate(command) if place not in places)
        return Stripped(tuple(others), tuple(command[place] for place in places), ())
    serve_command = read_command(command)
    arguments = serve_command.with_file(read_file)
    notes = _notes_on_model(arguments.model, serve_command.reader(read_file))
    options = arguments.speculation
    if not speculates(options):
        image, given = serve_command.location.image, arguments.options
        if image and not (given and all(option.flag for option in given)):
            raise CannotStrip(
                f"it is not known what the image {spelt(image)} starts, and its arguments have no"
                " speculation of vLLM's: give the command that runs in it (--entrypoint)"
            )
        return Stripped(tuple(command), (), notes)
    varying = _draft_lengths(options)
    if varying is not None and varying is not DraftLengths.MATCHES:  # which the method shows
        notes = (*notes, f"its drafts vary in length {CAUSES[varying]}")
    if not any(o.is_set and arguments.places[o.start] is None for o in options):
        options = [o for o in options if arguments.places[o.start] is not None]
    removals = {place for option in options for place in range(option.start, option.stop)}
    _refuse_captured(arguments, removals)
    removed = tuple(
        arguments.words[place].replace(VARIABLE_MARK, "$...") for place in sorted(removals)
    )
    dropped = {p for place in removals if (p := arguments.places[place]) is not None}
    file = arguments.file
    if file is None or all(arguments.places[place] is not None for place in removals):
        changed = serve_command.location.changed(dropped, {})
        words = (*serve_command.assignments, *changed)
        return Stripped(words, removed, notes, draft_lengths=varying)
    own, serve = serve_command.arguments, serve_command.location.serve
    if serve and MODEL in file.words and (doubtful := _doubtful_model(own)):
        raise CannotStrip(
            f"{file.path} names a model, and {spelt(doubtful)} may be another: put the model"
            " directly after `vllm serve`"
        )
    kept = [
        word
        for place, word in enumerate(arguments.words)
        if arguments.places[place] is None and place not in removals
    ]
    changed = serve_command.location.changed(
        dropped | {file.named_at, file.named_at + 1},
        {file.goes_to: file.written_out(kept, own.model, serve=serve)},
    )
    note = (
        f"{file.path} holds speculation: its other settings are on the command line instead, and"
        " later changes of the file have no effect"
    )
    words = (*serve_command.assignments, *changed)
    return Stripped(words, removed, (*notes, note), inlined=True, draft_lengths=varying)


def _draft_lengths(options: Sequence[Option]) -> DraftLengths | None:
    try:
        cause = draft_lengths(speculation_of(options).config.get)
    except ConfigError:
        return None  # vLLM would not start with it
    return None if cause is None else DraftLengths(cause)


def speculates(options: Sequence[Option]) -> bool:
    """Whether options about speculation together ask for it, or need it.

    ``extract_hidden_states`` uses the same flags and does not accelerate.
    """
    try:
        method = speculation_of(options).config.get("method")
    except ConfigError:
        method = None  # vLLM would not start with it: it is removed too
    return any(option.is_set for option in options) and method != _NOT_ACCELERATION


def with_flags(command: ServeCommand, flags: Sequence[tuple[str, str | None]]) -> ServeCommand:
    """The command with more flags, as the last words of vLLM; None is the value of one without.

    ``--middleware`` goes before other middleware: the first is the innermost, and sees what vLLM
    sends, not what other middleware changes. ``--speculative-config`` replaces the command's own,
    and the flags that set keys of it. Raises CannotStrip.
    """
    location, arguments = command.location, command.arguments
    if location.elsewhere is not None:
        raise CannotStrip(
            f"{location.elsewhere} starts vLLM in a container: install specwatch in its image, and"
            " add the flags at the end of what the container runs"
        )
    for word in location.words:
        if _VARIABLE.fullmatch(word):
            raise CannotStrip(f"{word} is replaced by an unknown word: write it out")
    end = location.words.index("--") if "--" in location.words else len(location.words)
    first = next((option.start for option in arguments.given(MIDDLEWARE)), end)
    inserted: dict[int, list[str]] = {}
    for flag, value in flags:
        words = inserted.setdefault(first if flag == MIDDLEWARE else end, [])
        words += (flag,) if value is None else (flag, value)
    replaced = any(flag == SPECULATIVE_CONFIG for flag, _ in flags)
    dropped = {
        place
        for option in arguments.options
        if replaced and option.is_configuration
        for place in range(option.start, option.stop)
    }
    _refuse_captured(arguments, dropped)
    return read_command([*command.assignments, *location.changed(dropped, inserted)])


def _refuse_captured(arguments: Arguments, removals: Set[int]) -> None:
    """Raise CannotStrip if a word would become the value of another flag without those removed."""
    for place in arguments.positionals:
        if place - 1 not in removals:
            continue
        before = max(
            (o for o in arguments.options if o.stop <= place and o.start not in removals),
            key=lambda o: o.stop,
            default=None,
        )
        if before is None or before.joined or before.key:
            continue
        if any(p not in removals for p in range(before.stop, place)):
            continue
        unknown = "0" if is_switch(before.spelling) else "+"
        nargs = unknown if before.flag is None else before.flag.nargs
        if nargs == "+" or (nargs == "?" and not before.values):
            raise CannotStrip(
                f"{spelt(arguments.words[place])} would become a value of {before.spelling} without"
                " the flags between them: put it directly after `vllm serve`"
            )


def _doubtful_model(arguments: Arguments) -> str | None:
    """The word that may be the model, or a value of the unknown flag before it."""
    for place in arguments.positionals:
        if any(o.stop == place and o.flag is None for o in arguments.options):
            return arguments.words[place]
    return None


def _notes_on_model(model: str | None, read_file: ReadFile | None) -> tuple[str, ...]:
    """Notes on a model; raises CannotStrip if it brings its own speculation.

    vLLM serves the verifier of a checkpoint of speculators, with it, whatever the flags say.
    Source: ``maybe_override_with_speculators`` of vLLM.
    """
    if model is None or VARIABLE_MARK in model or read_file is None:
        return ()
    path = f"{model.rstrip('/')}/config.json"
    try:
        text = read_file(path)
    except (FileNotFoundError, NotADirectoryError, KeyError):
        return ()  # most likely, it is on a hub
    except OSError as error:
        return (f"unknown whether the model brings speculation: {path}: {error.strerror}",)
    try:
        speculators = json.loads(text).get("speculators_config")
    except (ValueError, AttributeError) as error:
        raise CannotStrip(f"{path} is not the configuration of a model") from error
    if speculators is None:
        return ()
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    raise CannotStrip(
        f"the model {spelt(model)} brings its own speculation: serve its verifier"
        f" {'(named in its config.json)' if name is None else spelt(str(name))} instead, with"
        f" --served-model-name {model}"
    )
