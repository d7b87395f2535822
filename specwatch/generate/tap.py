"""What to add to ``vllm serve`` so that it loads the tap, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import specwatch_tap
from specwatch.errors import ConfigError
from specwatch.generate.systemd import exec_start, quoted
from specwatch.vllm_cli import ServeCommand, with_flags
from specwatch.vllm_cli.command import Arguments, speculation_of
from specwatch.vllm_cli.flags import (
    DATA_PARALLEL,
    MIDDLEWARE,
    RECORD,
    SCHEDULER,
    SPECULATIVE_CONFIG,
    TIMINGS,
)
from specwatch_tap.orders import DIRECTORY_VARIABLE, UNSWITCHABLE

INSTALL_CHECK = 'python -c "from specwatch_tap import Tap"'
DROP_IN = "/etc/systemd/system/UNIT.d/50-specwatch-tap.conf"
"""Sorts before the guard's drop-in, which starts the unit with another command."""

Version = tuple[int, int]
"""Major and minor version of vLLM."""

_RECORDS_SINCE: Version = (0, 29)
_TIMINGS_SINCE: Version = (0, 25)
_READ_SINCE: Version = (0, 8)
_SWITCHED_SINCE: Version = (0, 24)
_SCHEDULE = "num_speculative_tokens_per_batch_size"
_SPARES_DRAFTING: Version = (0, 32)
_EARLY_RUNNER = ("eagle", "eagle3", "mtp", "dflash", "dspark")
"""Methods that run on the V2 model runner since 0.25, which ignores k until 0.32."""

_WHY_MIDDLEWARE = (
    "vLLM loads the tap into its API server. It reads each request's temperature, acceptance, TTFT"
    " and TPOT as they pass, and counts them on vLLM's own /metrics."
)
_WHY_RECORD = (
    "vLLM adds to each response how many draft tokens of this request it accepted. Only together"
    " with speculation: without it, vLLM does not start with this flag."
)
_WHY_TIMINGS = (
    "vLLM adds to each response when its first and last token came: TTFT and TPOT of responses that"
    " are not streamed."
)

_UNKNOWN_VERSION = (
    f"The version of vLLM is not known. {RECORD} needs 0.29 or later: leave it out before, or give"
    " --vllm-version or --target to get advice for yours."
)
_SOME_VERSION = (
    f"{RECORD} needs speculation: leave it out of a command without. Give the command after -- to"
    " have it checked."
)
_NO_RECORDS = (
    "This vLLM keeps no acceptance records (0.29 does): acceptance is derived from the tokens of"
    " each streamed step, and responses that are not streamed count as not covered. Latency is"
    " exact."
)
_TOO_OLD = (
    "The tap is made for vLLM 0.8 and later. On this one, a request that names no temperature"
    " counts as unknown, acceptance by temperature is not available, and coverage cannot be"
    " checked: the speculation counters of its engine cannot be read by the window."
)
_NO_SPECULATION = (
    f"The command has no speculation, so it does not get {RECORD}, with which vLLM would not"
    " start. Should the model itself bring speculation (a speculators checkpoint), add"
    f" {RECORD} summary."
)
_RECORD_SEEN = (
    "Clients see the acceptance record as `metrics` in responses that are not streamed;"
    " --remove-metrics has the tap take it out."
)
_TIMINGS_OFFERED = (
    "TTFT and TPOT come from streamed responses; --per-request-metrics adds those that are not"
    " streamed."
)
_WHY_SCHEDULER = (
    "vLLM's own scheduler, with the switch: `specwatch switch` changes the number of draft tokens"
    " while vLLM runs."
)
_WHY_SCHEDULE = (
    f"{_SCHEDULE} makes vLLM look up the number of draft tokens at every step; this one is the same"
    " for all batch sizes. Without it there is nothing to switch."
)
_SWITCH_DIRECTORY = (
    "The directory of the switch must exist when vLLM starts, writable for vLLM and for specwatch,"
    " and for nobody else: `install -d -m 2770 -o VLLM_USER -g GROUP DIRECTORY`, with both users in"
    " the group; of a unit, RuntimeDirectory does it. The unit of specwatch needs"
    " SupplementaryGroups=GROUP and ReadWritePaths=-DIRECTORY (`systemctl edit specwatch`)."
)
_SWITCH_GRAPHS = (
    "On a GPU, vLLM uses piecewise in place of full CUDA graphs with such a schedule, unless its V2"
    " model runner is in use: measure what that costs before you keep it."
)
_EARLY = (
    "Before vLLM 0.32 its V2 model runner drafts as many tokens whatever is ordered, and may not"
    " start with such a schedule: set VLLM_USE_V2_MODEL_RUNNER=0 (not with dspark)."
)
_NO_SWITCH = "No switch: "
_NO_TIMINGS = f"{TIMINGS} needs vLLM 0.25 or later and is left out."


class AddedFlag(NamedTuple):
    """A flag of ``vllm serve``, its value if it takes one, and what it is for."""

    flag: str
    value: str | None
    why: str


@dataclass(frozen=True, slots=True)
class TapAdvice:
    """``flags`` and ``environment`` to add, and the resulting ``command``."""

    flags: tuple[AddedFlag, ...]
    environment: Mapping[str, str]
    command: ServeCommand | None
    notes: tuple[str, ...]


def version_of(text: str) -> Version | None:
    """The version in the version text of a vLLM; None for unreleased builds, which do not say it.

    Raises ValueError for a text that is not a version of vLLM.
    """
    version = re.match(r"v?(\d+)\.(\d+)(?=$|[^0-9])", text)
    if version is None:
        raise ValueError(f"{text!r} is not a version of vLLM; expected one like 0.29.0")
    if re.match(r"v?0\.[01]\.dev", text):  # built from a checkout without tags
        return None
    return int(version[1]), int(version[2])


def advise(
    version: Version | None,
    *,
    environment: Mapping[str, str],
    timings: bool = False,
    removes_metrics: bool = False,
    switch: str | None = None,
    command: ServeCommand | None = None,
    arguments: Arguments | None = None,
    unread: str | None = None,
) -> TapAdvice:
    """What a vLLM of this version needs; None when the version is not known.

    ``environment`` holds the tap's own settings, of which ``removes_metrics`` is one; ``timings``
    asks vLLM for those of responses that are not streamed, ``switch`` is the directory for a
    switch. ``command`` is what starts vLLM now, and ``arguments`` are its own with those of
    its ``--config`` file: nothing is added that is among
    them already. ``unread`` says why that file could not be read. Raises CannotStrip where flags
    cannot be added to the command.
    """
    if command is not None and arguments is None:
        arguments = command.arguments
    speculating = arguments is None or _speculates(arguments)
    flags = [AddedFlag(MIDDLEWARE, specwatch_tap.MIDDLEWARE, _WHY_MIDDLEWARE)]
    if _may(version, _RECORDS_SINCE) and speculating:
        flags.append(AddedFlag(RECORD, "summary", _WHY_RECORD))
    if _may(version, _TIMINGS_SINCE) and timings:
        flags.append(AddedFlag(TIMINGS, None, _WHY_TIMINGS))
    notes = _notes(
        version, flags, speculates=speculating, timings=timings, has_command=arguments is not None
    )
    if switch is not None:
        more, text = _switched(version, arguments)
        flags += more
        notes += text
        environment = {**environment, **({DIRECTORY_VARIABLE: switch} if more else {})}
    if unread is not None:
        notes.append(f"The --config file could not be read here ({unread}).")
    if any(flag.flag == RECORD for flag in flags) and not removes_metrics:
        notes.append(_RECORD_SEEN)
    missing = tuple(flag for flag in flags if arguments is None or not _has(arguments, flag))
    if command is not None:
        command = with_flags(command, [(flag.flag, flag.value) for flag in missing])
        variables = {**command.environment, **environment}
        assignments = tuple(f"{name}={value}" for name, value in variables.items())
        command = replace(command, assignments=assignments)
    return TapAdvice(missing, environment, command, tuple(notes))


def drop_in(advice: TapAdvice, install: str) -> str:
    """A systemd drop-in that starts the unit with the advised command.

    ``install`` is the command that installs the tap. Raises ValueError when there is no command to
    start, or systemd could not start it.
    """
    if advice.command is None:
        raise ValueError("a drop-in holds the whole command: give it after --")
    comments = [f"{DROP_IN}  (UNIT: the unit that runs vLLM)", "", *_explained(advice, install)]
    lines = [f"# {comment}".rstrip() for comment in comments]
    lines.append("[Service]")
    for name, value in advice.command.environment.items():
        lines.append(f"Environment={quoted(f'{name}={value}')}")
    directory = advice.command.environment.get(DIRECTORY_VARIABLE, "")
    if re.fullmatch(r"/run/[\w.-]+", directory):
        name = directory.removeprefix("/run/")
        lines += [f"RuntimeDirectory={name}", "RuntimeDirectoryMode=2770"]
        # The name space of the unit of specwatch keeps the directory that it began with.
        lines += ["RuntimeDirectoryPreserve=yes"]
    lines += ["ExecStart=", f"ExecStart={exec_start(advice.command.words)}"]
    return "\n".join(lines) + "\n"


def _explained(advice: TapAdvice, install: str) -> list[str]:
    lines = [f"Install the tap into vLLM's environment first: {install}"]
    for flag in advice.flags:
        lines.append(f"{' '.join(filter(None, flag[:2]))}: {flag.why}")
    return [*lines, *advice.notes]


def _notes(
    version: Version | None,
    flags: list[AddedFlag],
    *,
    speculates: bool,
    timings: bool,
    has_command: bool,
) -> list[str]:
    notes = []
    if version is None and speculates:
        notes.append(_UNKNOWN_VERSION)
    if version is not None and version < _READ_SINCE:
        notes.append(_TOO_OLD)
    elif not _may(version, _RECORDS_SINCE):
        notes.append(_NO_RECORDS)
    elif not speculates:
        notes.append(_NO_SPECULATION)
    elif not has_command:
        notes.append(_SOME_VERSION)
    if not _may(version, _TIMINGS_SINCE):
        notes += [_NO_TIMINGS] * timings
    elif not timings:
        notes.append(_TIMINGS_OFFERED)
    return notes


def _switched(
    version: Version | None, arguments: Arguments | None
) -> tuple[list[AddedFlag], list[str]]:
    """The flags that the switch needs, and notes; without flags, the note says why."""
    scheduler = AddedFlag(SCHEDULER, specwatch_tap.SCHEDULER, _WHY_SCHEDULER)
    notes = [_SWITCH_DIRECTORY, _SWITCH_GRAPHS]
    if not _may(version, _SWITCHED_SINCE):
        return [], [f"{_NO_SWITCH}it needs vLLM 0.24 or later."]
    if arguments is None:
        example = f'"{_SCHEDULE}": [[1, 1, K]]'
        return [scheduler], [
            f"Add {example} to its {SPECULATIVE_CONFIG}, K being its num_speculative_tokens.",
            *notes,
        ]
    why = ""
    try:
        config = speculation_of(arguments.options).config
    except ConfigError as error:
        return [], [f"{_NO_SWITCH}{error}"]
    k, method = config.get("num_speculative_tokens"), config.get("method")
    own = (None, specwatch_tap.SCHEDULER)
    others = [value for value in (arguments.value(SCHEDULER),) if value not in own]
    if not config:
        why = "the command has no speculation."
    elif others:
        why = f"{SCHEDULER} {others[0]} is another scheduler."
    elif method in UNSWITCHABLE:
        why = f"vLLM cannot change the number of draft tokens with the method {method}."
    elif arguments.value(DATA_PARALLEL) not in (None, "1"):
        why = "vLLM ignores a schedule of draft tokens under data parallelism."
    elif not str(k).isdigit() and _SCHEDULE not in config:
        why = "write num_speculative_tokens out in the command."
    elif arguments.file is not None and any(
        arguments.places[option.start] is None for option in arguments.speculation
    ):
        why = f"{arguments.file.path} holds the speculation: add {_SCHEDULE}: [[1, 1, {k}]] there."
    if why:
        return [], [_NO_SWITCH + why]
    if method in _EARLY_RUNNER and version is not None and version < _SPARES_DRAFTING:
        notes.append(_EARLY)
    if _SCHEDULE in config:
        return [scheduler], notes
    whole = {**config, "num_speculative_tokens": int(str(k)), _SCHEDULE: [[1, 1, int(str(k))]]}
    schedule = AddedFlag(SPECULATIVE_CONFIG, json.dumps(whole), _WHY_SCHEDULE)
    return [scheduler, schedule], notes


def _may(version: Version | None, since: Version) -> bool:
    return version is None or version >= since


def _speculates(arguments: Arguments) -> bool:
    try:
        return bool(speculation_of(arguments.options).config)
    except ConfigError:
        return True  # it asks for something invalid, which vLLM will report


def _has(arguments: Arguments, flag: AddedFlag) -> bool:
    values = [option.value for option in arguments.given(flag.flag)]
    if flag.flag == MIDDLEWARE:
        return specwatch_tap.MIDDLEWARE in values
    if flag.flag == SPECULATIVE_CONFIG:
        return False
    return bool(values) and values[-1] != "none"
